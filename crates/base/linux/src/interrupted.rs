//! Interrupted system calls, and the ones that may be restarted. Pure data; these functions make no calls.
//!
//! The kernel restarts most interrupted calls. Some fail with EINTR whenever their thread was stopped (signal(7),
//! "Interruption of system calls and library functions by stop signals"), and more fail after a signal's handler has
//! run, with or without SA_RESTART (signal(7), "Interruption of system calls and library functions by signal
//! handlers"). A tool that stops a thread without the program's knowledge has to restart these. A call that is not
//! named here is never restarted: `close` has closed its descriptor when it fails with EINTR, and the number may belong
//! to another file by then.

/// io_pgetevents(2) (Linux 4.18), which libc does not name.
#[cfg(target_arch = "x86_64")]
pub const IO_PGETEVENTS: i64 = 333;
/// io_pgetevents(2) (Linux 4.18), which libc does not name.
#[cfg(target_arch = "aarch64")]
pub const IO_PGETEVENTS: i64 = 292;

/// `FUTEX_CMD_MASK` of `linux/futex.h`.
const FUTEX_COMMAND: u64 = 0x7f;
/// `FUTEX_WAIT` and `FUTEX_WAIT_BITSET` of `linux/futex.h`.
const FUTEX_WAITS: [u64; 2] = [0, 9];

/// `IORING_ENTER_EXT_ARG`, `IORING_ENTER_ABS_TIMER` and `IORING_ENTER_EXT_ARG_REG` of `linux/io_uring.h` (Linux 5.11, 6.12
/// and 6.13).
const ENTER_EXTENDED: u64 = 1 << 3;
const ENTER_ABSOLUTE: u64 = 1 << 5;
const ENTER_REGISTERED: u64 = 1 << 6;
/// Offset in bytes of the timeout's address in `struct io_uring_getevents_arg`.
const ENTER_TIME: u64 = 16;

/// Calls that fail with EINTR after any stop and can be restarted unchanged.
const FREQUENT: &[i64] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_uring_enter,
    libc::SYS_io_getevents,
    IO_PGETEVENTS,
];

/// Calls that fail with EINTR for some descriptors: FUSE, inotify, sockets with a timeout. They do so only if they have
/// had no effect yet; a restarted connect continues to wait (`inet_stream_connect`).
const FOR_SOME_FILES: [i64; 20] = [
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_futex,
];

/// Calls that the kernel restarts after a stop (`ERESTARTNOHAND`), but not once a handler has run. select, pselect6 and
/// ppoll have replaced their timeout by the remaining time, so that they do not last longer.
const ENDED_BY_HANDLERS: &[i64] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_pause,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_ppoll,
    libc::SYS_rt_sigsuspend,
    libc::SYS_msgrcv,
    libc::SYS_msgsnd,
];

/// Calls of `ENDED_BY_HANDLERS` that fail with EINTR after a stop if the time is in read-only memory: they cannot
/// store the remaining time (`poll_select_finish`). On AArch64 a stop does not show whether a handler has run under the
/// call's own mask.
const OF_CONSTANT_TIMES: &[i64] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_select,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_pselect6,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ppoll,
];

/// Waits that fail with EINTR after a handler without SA_RESTART and are restarted after a handler with it
/// (`ERESTARTSYS`), in addition to the list `FOR_SOME_FILES`.
const ENDED_WITHOUT_SA_RESTART: [i64; 7] = [
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_flock,
    libc::SYS_fcntl,
    libc::SYS_openat,
    libc::SYS_mq_timedreceive,
    libc::SYS_mq_timedsend,
];

/// True for a call that fails with EINTR after any stop.
pub fn gives_error(number: i64) -> bool {
    FREQUENT.contains(&number)
}

/// True for a call that may fail with EINTR after a stop in which no handler has run, and can be restarted unchanged.
pub fn can_be_repeated(number: i64) -> bool {
    FREQUENT.contains(&number) || FOR_SOME_FILES.contains(&number) || OF_CONSTANT_TIMES.contains(&number)
}

/// True for a call that fails with EINTR once any handler has run, with or without SA_RESTART.
pub fn ends_with_any_handler(number: i64) -> bool {
    FREQUENT.contains(&number) || ENDED_BY_HANDLERS.contains(&number)
}

/// True for a wait that fails with EINTR where the first handler that runs was installed without SA_RESTART.
pub fn ends_without_sa_restart(number: i64, arguments: &[u64; 6]) -> bool {
    match number {
        // The other operations wait until they have the lock (`ERESTARTNOINTR`).
        libc::SYS_futex => FUTEX_WAITS.contains(&(arguments[1] & FUTEX_COMMAND)),
        _ => FOR_SOME_FILES.contains(&number) || ENDED_WITHOUT_SA_RESTART.contains(&number),
    }
}

/// `MSG_WAITALL`: the call waits until it has received the full length.
const WAIT_FOR_ALL: u64 = libc::MSG_WAITALL as u64;
/// Number of bytes up to which a write to a pipe is made at once (`PIPE_BUF`).
const WRITTEN_AT_ONCE: u64 = 4096;

/// True for a call that may sleep although it has had a part of its effect. A stop ends it then, with that part as its
/// result, and it cannot be restarted: the result would count only the rest.
pub fn may_end_in_part(number: i64, arguments: &[u64; 6]) -> bool {
    match number {
        libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_sendto => arguments[2] > WRITTEN_AT_ONCE,
        libc::SYS_writev | libc::SYS_pwritev | libc::SYS_pwritev2 | libc::SYS_sendmsg | libc::SYS_sendmmsg => true,
        libc::SYS_sendfile | libc::SYS_splice | libc::SYS_vmsplice | libc::SYS_recvmmsg => true,
        libc::SYS_recvfrom => arguments[3] & WAIT_FOR_ALL != 0,
        libc::SYS_recvmsg => arguments[2] & WAIT_FOR_ALL != 0,
        // It has submitted some, and waits for others.
        libc::SYS_io_uring_enter => arguments[1] > 0 && arguments[2] > 0,
        _ => false,
    }
}

/// How to restart a call that has failed with EINTR because a handler of Pagelift has run, and no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repetition {
    /// Not at all: it has had an effect, in part or completely, or is unknown here.
    Never,
    /// Unchanged: it has had no effect yet, or waits until an absolute time.
    AsItWas,
    /// By restart_syscall(2): it waits for a relative time of which the kernel keeps the rest. rt_sigreturn(2) makes
    /// the kernel forget it.
    WithTimeLeft,
    /// Unchanged, but it lasts longer then: the call waits for a relative time, and the elapsed time is unknown.
    WithWholeTime(Length),
}

/// Where the timeout of a call is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// In the arguments: this number of milliseconds.
    Milliseconds(u64),
    /// In a `struct timespec` at this address.
    At(u64),
    /// In a `struct timespec` whose address is stored at this address.
    AtAddressIn(u64),
    /// In an option of this socket (socket(7)): `SO_RCVTIMEO` or `SO_SNDTIMEO`. A timeout of 0, or a file that is not a
    /// socket, has no limit.
    OptionOf {
        /// The descriptor.
        socket: i32,
        /// The option's number.
        option: i32,
    },
}

/// How a call gets the relative time after which it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// As a number of milliseconds; a negative one means no limit.
    Milliseconds,
    /// As the address of a `struct timespec`; 0 means no limit.
    Timespec,
}

/// Returns the index of the argument by which a call gets a relative time of which the kernel keeps no rest, and its form.
pub fn relative_limit(number: i64) -> Option<(usize, Limit)> {
    match number {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait => Some((3, Limit::Milliseconds)),
        libc::SYS_epoll_pwait => Some((3, Limit::Milliseconds)),
        libc::SYS_epoll_pwait2 | libc::SYS_semtimedop => Some((3, Limit::Timespec)),
        libc::SYS_rt_sigtimedwait => Some((2, Limit::Timespec)),
        libc::SYS_io_getevents | IO_PGETEVENTS => Some((4, Limit::Timespec)),
        _ => None,
    }
}

/// Like [`relative_limit`], for a call that a stop has made fail with EINTR: ppoll and pselect6 have then not stored what is
/// left of their time.
pub fn limit_after_stop(number: i64) -> Option<(usize, Limit)> {
    relative_limit(number).or(match number {
        libc::SYS_ppoll => Some((2, Limit::Timespec)),
        libc::SYS_pselect6 => Some((4, Limit::Timespec)),
        _ => None,
    })
}

/// Returns how to restart a call with these arguments that has failed with EINTR after a handler of Pagelift.
pub fn after_own_handler(number: i64, arguments: &[u64; 6]) -> Repetition {
    if let Some((index, limit)) = relative_limit(number) {
        return match (limit, arguments[index]) {
            (Limit::Timespec, 0) => Repetition::AsItWas,
            (Limit::Timespec, address) => Repetition::WithWholeTime(Length::At(address)),
            (Limit::Milliseconds, limit) => match u64::try_from(limit as i32) {
                Ok(limit) => Repetition::WithWholeTime(Length::Milliseconds(limit)),
                Err(_) => Repetition::AsItWas,
            },
        };
    }
    let socket = |option| {
        let socket = arguments[0] as i32;
        Repetition::WithWholeTime(Length::OptionOf { socket, option })
    };
    match number {
        libc::SYS_nanosleep | libc::SYS_restart_syscall => Repetition::WithTimeLeft,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll => Repetition::WithTimeLeft,
        libc::SYS_clock_nanosleep if arguments[1] & libc::TIMER_ABSTIME as u64 != 0 => Repetition::AsItWas,
        libc::SYS_clock_nanosleep => Repetition::WithTimeLeft,
        libc::SYS_futex if FUTEX_WAITS.contains(&(arguments[1] & FUTEX_COMMAND)) && arguments[3] != 0 => {
            Repetition::WithTimeLeft
        }
        libc::SYS_futex => Repetition::AsItWas,
        libc::SYS_io_uring_enter => after_ring(arguments),
        // recvmmsg checks its own timeout only between messages (recvmmsg(2), "Bugs").
        libc::SYS_read | libc::SYS_readv | libc::SYS_recvfrom | libc::SYS_recvmsg | libc::SYS_recvmmsg => {
            socket(libc::SO_RCVTIMEO)
        }
        // preadv2 and pwritev2 are readv and writev where their offset is -1; the other calls with one take no socket.
        libc::SYS_preadv2 | libc::SYS_accept | libc::SYS_accept4 => socket(libc::SO_RCVTIMEO),
        libc::SYS_write | libc::SYS_writev | libc::SYS_sendto | libc::SYS_sendmsg | libc::SYS_sendmmsg => {
            socket(libc::SO_SNDTIMEO)
        }
        libc::SYS_pwritev2 | libc::SYS_connect => socket(libc::SO_SNDTIMEO),
        _ if can_be_repeated(number) || ENDED_BY_HANDLERS.contains(&number) => Repetition::AsItWas,
        _ => Repetition::Never,
    }
}

/// Handles io_uring_enter(2), which fails with EINTR only if it has submitted nothing.
fn after_ring(arguments: &[u64; 6]) -> Repetition {
    let (flags, extended) = (arguments[3], arguments[4]);
    match flags {
        _ if flags & ENTER_REGISTERED != 0 => Repetition::Never,
        _ if flags & ENTER_EXTENDED == 0 || flags & ENTER_ABSOLUTE != 0 || extended == 0 => Repetition::AsItWas,
        _ => Repetition::WithWholeTime(Length::AtAddressIn(extended.wrapping_add(ENTER_TIME))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_done_its_work_is_never_made_again() {
        for number in [libc::SYS_close, libc::SYS_dup3, libc::SYS_ioctl, libc::SYS_openat, libc::SYS_fsync, -1, 9999] {
            assert_eq!(after_own_handler(number, &[3; 6]), Repetition::Never, "{number}");
            assert!(!can_be_repeated(number));
        }
    }

    #[test]
    fn calls_that_sleep_in_the_middle_are_known() {
        let of = |number, arguments| may_end_in_part(number, &arguments);
        assert!(of(libc::SYS_write, [1, 8, 1 << 20, 0, 0, 0]) && !of(libc::SYS_write, [1, 8, 4096, 0, 0, 0]));
        assert!(of(libc::SYS_recvfrom, [5, 8, 9, 0x100, 0, 0]) && !of(libc::SYS_recvfrom, [5, 8, 9, 0x40, 0, 0]));
        assert!(of(libc::SYS_recvmsg, [5, 8, 0x100, 0, 0, 0]) && !of(libc::SYS_recvmsg, [5, 8, 0, 0, 0, 0]));
        assert!(of(libc::SYS_io_uring_enter, [4, 1, 1, 1, 0, 0]) && !of(libc::SYS_io_uring_enter, [4, 0, 1, 1, 0, 0]));
        assert!(!of(libc::SYS_read, [5, 8, 1 << 20, 0, 0, 0]));
    }

    #[test]
    fn waits_until_a_moment_are_made_again_as_they_were() {
        let absolute = [1, libc::TIMER_ABSTIME as u64, 8, 0, 0, 0];
        assert_eq!(after_own_handler(libc::SYS_clock_nanosleep, &absolute), Repetition::AsItWas);
        // FUTEX_LOCK_PI has an absolute timeout.
        assert_eq!(after_own_handler(libc::SYS_futex, &[8, 6, 0, 8, 0, 0]), Repetition::AsItWas);
        let until = [4, 0, 1, ENTER_EXTENDED | ENTER_ABSOLUTE, 64, 24];
        assert_eq!(after_own_handler(libc::SYS_io_uring_enter, &until), Repetition::AsItWas);
    }

    #[test]
    fn waits_of_a_length_keep_to_what_is_left_where_the_kernel_knows_it() {
        for operation in [0, 128, 9, 128 | 9 | 256] {
            let call = [8, operation, 0, 8, 0, 0];
            assert_eq!(after_own_handler(libc::SYS_futex, &call), Repetition::WithTimeLeft, "{operation}");
        }
        assert_eq!(after_own_handler(libc::SYS_futex, &[8, 0, 0, 0, 0, 0]), Repetition::AsItWas);
        for number in [libc::SYS_nanosleep, libc::SYS_restart_syscall] {
            assert_eq!(after_own_handler(number, &[8; 6]), Repetition::WithTimeLeft);
        }
        assert_eq!(after_own_handler(libc::SYS_clock_nanosleep, &[1, 0, 8, 0, 0, 0]), Repetition::WithTimeLeft);
    }

    #[test]
    fn the_length_of_other_waits_is_found() {
        let epoll =
            |milliseconds: i32| after_own_handler(libc::SYS_epoll_pwait, &[3, 8, 1, milliseconds as u32 as u64, 0, 8]);
        assert_eq!(epoll(-1), Repetition::AsItWas);
        assert_eq!(epoll(300), Repetition::WithWholeTime(Length::Milliseconds(300)));
        let at = |number, arguments| after_own_handler(number, &arguments);
        assert_eq!(at(libc::SYS_semtimedop, [1, 8, 1, 64, 0, 0]), Repetition::WithWholeTime(Length::At(64)));
        assert_eq!(at(libc::SYS_semtimedop, [1, 8, 1, 0, 0, 0]), Repetition::AsItWas);
        assert_eq!(at(libc::SYS_rt_sigtimedwait, [8, 0, 64, 8, 0, 0]), Repetition::WithWholeTime(Length::At(64)));
        assert_eq!(at(libc::SYS_io_getevents, [8, 1, 1, 8, 64, 0]), Repetition::WithWholeTime(Length::At(64)));
        let ring = at(libc::SYS_io_uring_enter, [4, 0, 1, ENTER_EXTENDED, 64, 24]);
        assert_eq!(ring, Repetition::WithWholeTime(Length::AtAddressIn(64 + ENTER_TIME)));
        let option = libc::SO_RCVTIMEO;
        let socket = Repetition::WithWholeTime(Length::OptionOf { socket: 5, option });
        assert_eq!(at(libc::SYS_recvfrom, [5, 8, 1, 0, 0, 0]), socket);
    }

    #[test]
    fn what_fuse_ends_at_an_offset_is_made_again() {
        for number in [libc::SYS_pread64, libc::SYS_pwrite64, libc::SYS_preadv, libc::SYS_pwritev] {
            assert!(can_be_repeated(number) && !gives_error(number), "{number}");
            assert_eq!(after_own_handler(number, &[5, 8, 1, 4096, 0, 0]), Repetition::AsItWas, "{number}");
        }
        for (number, option) in [(libc::SYS_preadv2, libc::SO_RCVTIMEO), (libc::SYS_pwritev2, libc::SO_SNDTIMEO)] {
            let wanted = Repetition::WithWholeTime(Length::OptionOf { socket: 5, option });
            assert!(
                can_be_repeated(number) && after_own_handler(number, &[5, 8, 1, u64::MAX, 0, 0]) == wanted,
                "{number}"
            );
        }
    }

    #[test]
    fn what_a_stop_alone_ends_is_made_again_behind_a_handler_too() {
        for number in FREQUENT.iter().chain(&FOR_SOME_FILES) {
            assert!(after_own_handler(*number, &[0; 6]) != Repetition::Never, "{number}");
        }
    }
}

//! Tests that filters give the same answers here as in the kernel.

use super::filter::run;
use super::*;
use proptest::prelude::*;
use std::os::fd::AsRawFd;

/// No system call has this number.
const NO_CALL: i32 = 0x3fff;

const fn instruction(code: u16, value: u32) -> Instruction {
    Instruction { code, if_true: 0, if_false: 0, value }
}

const RETURN_ALLOWED: Instruction = instruction(0x06, RET_ALLOW);

/// Returns a filter for [`NO_CALL`] that calculates a value and returns twelve bits as an error.
fn whole(body: &[Instruction], shift: u32) -> Vec<Instruction> {
    let is_it = Instruction { code: 0x15, if_true: 1, if_false: 0, value: NO_CALL as u32 };
    let mut filter = vec![instruction(0x20, 0), is_it, RETURN_ALLOWED];
    // The kernel requires that each cell is written before it is read.
    filter.extend((0..16).map(|cell| instruction(0x02, cell)));
    filter.extend(body);
    // Jumps skip up to three instructions: those that follow are always executed.
    filter.extend([instruction(0x02, 0); 4]);
    // Shifted, cut, and marked as an error; returned.
    filter.extend([instruction(0x74, shift), instruction(0x54, 0xfff), instruction(0x44, RET_ERRNO)]);
    filter.push(instruction(0x16, 0));
    filter
}

/// Returns the error of the call in a child with these filters, the oldest first; `None` where the child is killed.
fn ask_kernel(filters: &[&[Instruction]], arguments: [u64; 6]) -> Option<i32> {
    let (read, write) = nix::unistd::pipe().unwrap();
    let program = |filter: &&[Instruction]| libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast_mut().cast(),
    };
    let programs: Vec<_> = filters.iter().map(program).collect();
    // SAFETY:
    // - the child makes system calls only, and ends by one.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let a = arguments;
            // SAFETY:
            // - the filters have these lengths; a call with an unused number has no effect; the word that is written
            //   belongs to the child.
            unsafe {
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
                for program in &programs {
                    if libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, program) != 0 {
                        libc::_exit(2);
                    }
                }
                let result = libc::syscall(i64::from(NO_CALL), a[0], a[1], a[2], a[3], a[4], a[5]);
                let errno = if result == 0 { 0 } else { Errno::last_raw() };
                libc::write(write.as_raw_fd(), (&raw const errno).cast(), 4);
                libc::_exit(0)
            }
        }
        ForkResult::Parent { child } => {
            drop(write);
            let mut errno = [0; 4];
            let read = nix::unistd::read(&read, &mut errno).unwrap();
            let status = waitpid(child, Some(WaitPidFlag::__WALL)).unwrap();
            assert_ne!(status, WaitStatus::Exited(child, 2), "the kernel does not let a filter in: {filters:?}");
            (read == 4).then(|| i32::from_ne_bytes(errno))
        }
    }
}

fn any_instruction() -> impl Strategy<Value = Instruction> {
    let cell = 0u32..16;
    // All fields but the address of the call: the child makes it in the C library.
    let offset = prop_oneof![Just(0u32), Just(4), (4u32..16).prop_map(|word| word * 4)];
    let value = prop_oneof![any::<u32>(), 0u32..40, Just(u32::MAX)];
    prop_oneof![
        3 => offset.prop_map(|offset| instruction(0x20, offset)),
        1 => value.clone().prop_map(|value| instruction(0x00, value)),
        1 => value.clone().prop_map(|value| instruction(0x01, value)),
        1 => cell.clone().prop_map(|cell| instruction(0x60, cell)),
        1 => cell.clone().prop_map(|cell| instruction(0x61, cell)),
        1 => cell.clone().prop_map(|cell| instruction(0x02, cell)),
        1 => cell.prop_map(|cell| instruction(0x03, cell)),
        1 => prop_oneof![Just(0x07u16), Just(0x87), Just(0x80), Just(0x81), Just(0x84)].prop_map(|code| instruction(code, 0)),
        // With the instruction's value: the kernel rejects a division by zero and a shift by more than 31.
        3 => (prop_oneof![Just(0x04u16), Just(0x14), Just(0x24), Just(0x44), Just(0x54), Just(0xa4)], value.clone())
            .prop_map(|(code, value)| instruction(code, value)),
        1 => (prop_oneof![Just(0x64u16), Just(0x74)], 0u32..32).prop_map(|(code, value)| instruction(code, value)),
        1 => (1u32..).prop_map(|value| instruction(0x34, value)),
        // With the index.
        2 => prop_oneof![Just(0x0cu16), Just(0x1c), Just(0x2c), Just(0x3c), Just(0x4c), Just(0x5c), Just(0x6c), Just(0x7c), Just(0xac)]
            .prop_map(|code| instruction(code, 0)),
        2 => (prop_oneof![Just(0x15u16), Just(0x25), Just(0x35), Just(0x45), Just(0x1d), Just(0x2d), Just(0x3d), Just(0x4d)],
              0u8..4, 0u8..4, value)
            .prop_map(|(code, if_true, if_false, value)| Instruction { code, if_true, if_false, value }),
        1 => (0u32..4).prop_map(|value| instruction(0x05, value)),
    ]
}

fn any_body() -> impl Strategy<Value = Vec<Instruction>> {
    proptest::collection::vec(any_instruction(), 0..24)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn answers_are_the_kernels(body in any_body(), arguments in any::<[u64; 6]>()) {
        let call = Call { number: NO_CALL, architecture: arch::AUDIT_ARCHITECTURE, behind: 0, arguments };
        for shift in [0, 12, 20] {
            let filter = whole(&body, shift);
            let answer = run(&filter, &call);
            let verdict = answer.map(|answer| (answer & ACTION == RET_ERRNO).then_some((answer & DATA) as i32));
            prop_assert_eq!(verdict, Some(ask_kernel(&[&filter], arguments)), "{:?} gave {:x?}", filter, answer);
        }
    }
}

#[test]
fn what_the_kernel_does_not_let_in_is_no_answer() {
    let call = Call { number: 1, architecture: 2, behind: 0x1_0000_0003, arguments: [4, 5, 6, 7, 8, u64::MAX] };
    let answer = |instructions: &[Instruction]| run(instructions, &call);
    let loaded = |offset| answer(&[instruction(0x20, offset), instruction(0x16, 0)]);
    assert_eq!([loaded(0), loaded(4), loaded(8), loaded(12)], [Some(1), Some(2), Some(3), Some(1)]);
    assert_eq!([loaded(16), loaded(56), loaded(60)], [Some(4), Some(u32::MAX), Some(u32::MAX)]);
    assert_eq!([loaded(64), loaded(2), loaded(u32::MAX)], [None; 3]);
    // Without a return, with a jump beyond the end, with an invalid cell, and with an unknown operation.
    assert_eq!(answer(&[]), None);
    assert_eq!(answer(&[instruction(0x05, u32::MAX), RETURN_ALLOWED]), None);
    assert_eq!(answer(&[instruction(0x60, 16), RETURN_ALLOWED]), None);
    assert_eq!(answer(&[instruction(0x94, 1), RETURN_ALLOWED]), None);
}

#[test]
fn the_strictest_filter_decides() {
    let returns = |value| vec![instruction(0x06, value)];
    let judge = |values: &[u32]| Filters::Known(values.iter().copied().map(returns).collect()).judge(1, [0; 6], 0);
    assert_eq!(judge(&[RET_ALLOW, RET_LOG]), FilterAnswer::Allowed);
    assert_eq!(judge(&[RET_ALLOW, RET_ERRNO | 13, RET_LOG]), FilterAnswer::Fails(Errno::EACCES));
    // Kills of the thread and of the process, SIGSYS, a supervisor, a tracer, and an unknown action.
    for refuses in [0, 0x8000_0000, 0x0003_0000, 0x7fc0_0000, 0x7ff0_0000, 0x1234_0000] {
        assert_eq!(judge(&[RET_ALLOW, refuses]), FilterAnswer::Refused, "{refuses:#x}");
    }
    // An error is stricter than a supervisor and less strict than a kill.
    assert_eq!(judge(&[0x7fc0_0000, RET_ERRNO | 1]), FilterAnswer::Fails(Errno::EPERM));
    assert_eq!(judge(&[0x8000_0000, RET_ERRNO | 1]), FilterAnswer::Refused);
    assert_eq!(Filters::None.judge(1, [0; 6], 0), FilterAnswer::Allowed);
    // A filter that cannot be executed refuses, whatever the others return.
    let filters = Filters::Known(vec![returns(RET_ALLOW), Vec::new()]);
    assert_eq!(filters.judge(1, [0; 6], 0), FilterAnswer::Refused);
}

#[test]
fn of_equal_actions_the_newest_filter_gives_the_error() {
    // Returns an error for `NO_CALL`, and allows everything else.
    let fails_with = |errno: u32| {
        let is_it = Instruction { code: 0x15, if_true: 1, if_false: 0, value: NO_CALL as u32 };
        vec![instruction(0x20, 0), is_it, RETURN_ALLOWED, instruction(0x06, RET_ERRNO | errno)]
    };
    for errors in [[1, 13], [13, 1]] {
        let filters = errors.map(fails_with);
        let asked = ask_kernel(&[&filters[0], &filters[1]], [0; 6]);
        let verdict = Filters::Known(filters.to_vec()).judge(i64::from(NO_CALL), [0; 6], 0);
        assert_eq!((verdict, asked), (FilterAnswer::Fails(Errno::from_raw(errors[1] as i32)), Some(errors[1] as i32)));
    }
}

#[test]
fn a_child_that_is_killed_is_noticed_where_sigchld_is_ignored() {
    let allowed: NamedCall = ("getpid", libc::SYS_getpid, [0; 6]);
    let kills: NamedCall = ("kill", libc::SYS_tkill, [0; 6]);
    // In a child: the disposition applies to the whole process.
    // SAFETY:
    // - the C library makes the child's heap usable, and the child uses nothing else of other threads.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            // SAFETY:
            // - no handler is installed; the calls take integers.
            unsafe {
                let _ = signal(Signal::SIGCHLD, SigHandler::SigIgn);
                let filter = kills_for_tkill();
                let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut().cast() };
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
                let set = libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0;
                let right = set && !is_killed(&[allowed]) && is_killed(&[kills]);
                let kept = matches!(signal(Signal::SIGCHLD, SigHandler::SigDfl), Ok(SigHandler::SigIgn));
                libc::_exit(if right && kept { 0 } else { 1 })
            }
        }
        ForkResult::Parent { child } => assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0))),
    }
}

/// Kills for tkill, and allows everything else.
fn kills_for_tkill() -> Vec<Instruction> {
    let is_it = Instruction { code: 0x15, if_true: 0, if_false: 1, value: libc::SYS_tkill as u32 };
    vec![instruction(0x20, 0), is_it, instruction(0x06, 0x8000_0000), RETURN_ALLOWED]
}

#[test]
fn a_harmless_call_is_found() {
    // Allows getpid, kills for everything else.
    let is_it = Instruction { code: 0x15, if_true: 1, if_false: 0, value: libc::SYS_getpid as u32 };
    let filter = vec![instruction(0x20, 0), is_it, instruction(0x06, 0), RETURN_ALLOWED];
    assert_eq!(Filters::Known(vec![filter]).harmless_call([0; 6], 0), libc::SYS_getpid);
    assert_eq!(Filters::None.harmless_call([0; 6], 0), -1);
}

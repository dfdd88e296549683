//! Processes that have executed a program, as the kernel's process connector reports them (`linux/cn_proc.h`).
//!
//! The kernel answers in the initial network, PID and user namespace only. In others it refuses or ignores the request
//! without an answer. Before Linux 6.6 it needs CAP_NET_ADMIN and reports every kind of event. Events are lost if nobody
//! reads them in time, and other processes can be heard: they are hints, and no more.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::{RcvBuf, RcvBufForce};
use nix::sys::socket::{MsgFlags, NetlinkAddr, bind, recvfrom, send, setsockopt};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Identifier of the connector of process events, which is also its multicast group (`CN_IDX_PROC`).
const PROCESS_EVENTS: u32 = 1;
/// `CN_VAL_PROC`.
const VALUE: u32 = 1;
const LISTEN: u32 = 1;
const IGNORE: u32 = 2;
/// Kinds of events: the acknowledgement of a request, and an exec.
const ACKNOWLEDGED: u32 = 0;
const EXECUTED: u32 = 2;
/// Lengths of `struct nlmsghdr`, `struct cn_msg`, and `struct proc_event` before its data.
const HEADER: usize = 16;
const MESSAGE: usize = 20;
const EVENT: usize = 16;
/// `NLMSG_DONE`, the type of all messages of connectors.
const DONE: u16 = 3;
/// Bytes that the kernel keeps until they are read: about 10,000 events.
const BUFFER: usize = 8 << 20;
/// Time for the acknowledgement, which the kernel sends during the request.
const LONGEST_ANSWER: Duration = Duration::from_millis(500);
/// Most datagrams of one reading, which takes about 1 µs for each.
const MOST: usize = 4_000;

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// The request before this number was answered with this error, or 0.
    Acknowledged { next: u32, error: u32 },
    /// A process has executed a program.
    Executed { process: i32 },
}

/// The events since the last reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Executed {
    /// Numbers of the processes, in the initial PID namespace.
    pub processes: Vec<i32>,
    /// The kernel has dropped others.
    pub were_lost: bool,
}

/// Receives the events from its creation until it is dropped.
#[derive(Debug)]
pub struct ExecEvents {
    socket: OwnedFd,
}

impl ExecEvents {
    /// Subscribes, and waits for the kernel's acknowledgement.
    ///
    /// # Errors
    /// Those of socket(2), bind(2) and sendto(2); `ECONNREFUSED` in another network namespace; `ETIMEDOUT` without an answer,
    /// as in another PID or user namespace; the error in the answer, `EPERM` before Linux 6.6 without CAP_NET_ADMIN.
    pub fn subscribe() -> Result<Self, Errno> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY:
        // - takes integers and touches no memory.
        let socket = Errno::result(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_CONNECTOR) })?;
        // SAFETY:
        // - the descriptor is new, so that nobody else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        // Without CAP_NET_ADMIN the usual limit of the machine holds.
        if setsockopt(&socket, RcvBufForce, &BUFFER).is_err() {
            let _ = setsockopt(&socket, RcvBuf, &BUFFER);
        }
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, PROCESS_EVENTS))?;
        // From here on its end unsubscribes.
        let events = Self { socket };
        let sequence = std::process::id();
        events.request(sequence, &LISTEN.to_ne_bytes())?;
        events.wait_for_answer(sequence)?;
        // Linux 6.6: execs only, which would also suppress the acknowledgement. An older kernel ignores a request of this length.
        events.request(sequence, &[LISTEN.to_ne_bytes(), EXECUTED.to_ne_bytes()].concat())?;
        Ok(events)
    }

    /// Reads the events so far, and does not wait.
    pub fn read(&self) -> Executed {
        let mut executed = Executed::default();
        let mut bytes = [0; 4096];
        for _ in 0..MOST {
            match self.receive(&mut bytes) {
                Ok(received) => executed.processes.extend(received.iter().filter_map(|event| match event {
                    Event::Executed { process } => Some(*process),
                    Event::Acknowledged { .. } => None,
                })),
                Err(Errno::ENOBUFS) => executed.were_lost = true,
                Err(Errno::EINTR) => {}
                Err(_) => return executed,
            }
        }
        executed
    }

    fn request(&self, sequence: u32, data: &[u8]) -> Result<(), Errno> {
        send(self.socket.as_raw_fd(), &request(sequence, data), MsgFlags::empty()).map(drop)
    }

    fn wait_for_answer(&self, sequence: u32) -> Result<(), Errno> {
        let (begin, mut bytes) = (Instant::now(), [0; 4096]);
        loop {
            let left = LONGEST_ANSWER.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Err(Errno::ETIMEDOUT);
            }
            let mut readable = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
            poll(&mut readable, PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO)).or_else(interrupted)?;
            let events = match self.receive(&mut bytes) {
                Ok(events) => events,
                Err(Errno::EAGAIN | Errno::EINTR | Errno::ENOBUFS) => continue,
                Err(error) => return Err(error),
            };
            for event in events {
                // The kernel counts in the other field of the answer, the sequence.
                if let Event::Acknowledged { next, error } = event
                    && next == sequence.wrapping_add(1)
                {
                    return if error == 0 { Ok(()) } else { Err(Errno::from_raw(error as i32)) };
                }
            }
        }
    }

    /// The events of one datagram. Those of other senders than the kernel do not count.
    fn receive(&self, bytes: &mut [u8]) -> Result<Vec<Event>, Errno> {
        let (length, from) = recvfrom::<NetlinkAddr>(self.socket.as_raw_fd(), bytes)?;
        Ok(match from {
            Some(from) if from.pid() == 0 => parse(&bytes[..length]),
            _ => Vec::new(),
        })
    }
}

/// Without this request the kernel builds events until the last socket of the group is closed.
impl Drop for ExecEvents {
    fn drop(&mut self) {
        let _ = self.request(0, &IGNORE.to_ne_bytes());
    }
}

fn interrupted(error: Errno) -> Result<i32, Errno> {
    if error == Errno::EINTR { Ok(0) } else { Err(error) }
}

/// A request to the connector of process events.
fn request(sequence: u32, data: &[u8]) -> Vec<u8> {
    let length = (HEADER + MESSAGE + data.len()) as u32;
    let header = [length.to_ne_bytes(), [DONE.to_ne_bytes(), [0, 0]].concat().try_into().unwrap_or_default()];
    let numbers = [0, 0, PROCESS_EVENTS, VALUE, sequence, sequence].map(u32::to_ne_bytes);
    let lengths = [(data.len() as u16).to_ne_bytes(), [0, 0]];
    [header.concat(), numbers.concat(), lengths.concat(), data.to_vec()].concat()
}

/// The events of a datagram. Lengths in it are not trusted.
fn parse(mut datagram: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(length) = number(datagram, 0).map(|length| length as usize) {
        if length < HEADER || length > datagram.len() {
            break;
        }
        events.extend(event_of(&datagram[HEADER..length]));
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    events
}

/// The event in a message of a connector.
fn event_of(message: &[u8]) -> Option<Event> {
    if (number(message, 0)?, number(message, 4)?) != (PROCESS_EVENTS, VALUE) {
        return None;
    }
    let event = message.get(MESSAGE..)?;
    match number(event, 0)? {
        ACKNOWLEDGED => Some(Event::Acknowledged { next: number(message, 12)?, error: number(event, EVENT)? }),
        // The thread group; a thread that executes a program becomes its first thread.
        EXECUTED => Some(number(event, EVENT + 4)? as i32)
            .filter(|&process| process > 0)
            .map(|process| Event::Executed { process }),
        _ => None,
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::Command;

    fn message(kind: u32, data: [u32; 2]) -> Vec<u8> {
        let event = [kind, 0, 0, 0, data[0], data[1], 0, 0, 0, 0].map(u32::to_ne_bytes).concat();
        request(7, &event)
    }

    #[test]
    fn events_are_parsed_and_others_are_left_out() {
        let two = [message(EXECUTED, [5, 6]), message(1, [8, 9]), message(ACKNOWLEDGED, [13, 0])].concat();
        let acknowledged = Event::Acknowledged { next: 7, error: 13 };
        assert_eq!(parse(&two), [Event::Executed { process: 6 }, acknowledged]);
        let mut of_another = message(EXECUTED, [5, 6]);
        of_another[HEADER] = 9;
        assert_eq!(parse(&of_another), []);
        assert_eq!(parse(&message(EXECUTED, [5, u32::MAX])), [], "no process has a negative number");
        for length in [0_u32, 15, u32::MAX] {
            let mut wrong = message(EXECUTED, [5, 6]);
            wrong[..4].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(parse(&wrong), [], "{length}");
        }
    }

    proptest! {
        #[test]
        fn no_datagram_is_too_hostile(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0_usize..80) {
            let events = parse(&bytes);
            prop_assert!(events.len() <= bytes.len() / HEADER);
            let whole = message(EXECUTED, [5, 6]);
            let cut = cut.min(whole.len());
            prop_assert!(cut == whole.len() || parse(&whole[..cut]).is_empty());
        }
    }

    /// With the kernel, where it answers: as root in the initial namespaces.
    #[test]
    fn an_exec_is_heard() {
        let events = match ExecEvents::subscribe() {
            Ok(events) => events,
            Err(error) => {
                eprintln!("skipped: the process connector does not answer: {error}");
                return;
            }
        };
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let heard = events.read();
        assert!(heard.processes.contains(&(child.id() as i32)), "{heard:?}");
        // A second one has its own subscription, whose end ends no other one.
        drop(ExecEvents::subscribe().unwrap());
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert!(events.read().processes.contains(&(child.id() as i32)));
    }
}

//! HTTP for Prometheus: `GET /metrics` and `GET /healthz`, on loopback or on a Unix socket.
//!
//! A client has two seconds for its request of at most 8 KiB, and two for the answer. Eight are served at a time: one more
//! disconnects the oldest, so that idle clients keep nobody out. Slow or hostile clients cost 16 threads at most.

use super::text::OPEN_METRICS;
use crate::rules::Listen;
use nix::fcntl::{OFlag, open};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket};
use nix::sys::stat::Mode;
use nix::unistd::getpid;
use std::collections::VecDeque;
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const MOST_CLIENTS: usize = 8;
/// Threads of disconnected clients have not ended yet.
const MOST_THREADS: usize = 2 * MOST_CLIENTS;
const MOST_REQUEST: usize = 8 << 10;
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);

/// The text that is served: the supervisor replaces it, clients read it.
#[derive(Clone, Debug, Default)]
pub struct Published(Arc<Mutex<Option<Text>>>);

/// One text.
#[derive(Clone, Debug)]
struct Text {
    text: Arc<str>,
    /// When another one should have replaced it.
    until: Option<Instant>,
}

impl Published {
    /// Replaces the text by a newer one. The supervisor counts as healthy for the time `valid`.
    pub fn publish(&self, text: String, valid: Duration) {
        let next = Text { text: text.into(), until: Instant::now().checked_add(valid) };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(next);
    }

    fn text(&self) -> Option<Text> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A server with its own threads. It ends when it is dropped.
#[derive(Debug)]
pub struct Server {
    address: Listen,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A client's connection.
trait Connection: Read + Write + Send {
    fn limit(&self, time: Duration) -> io::Result<()>;
    /// Another handle on it.
    fn duplicate(&self) -> io::Result<Box<dyn Connection>>;
    /// Disconnects the client, and ends the calls that wait for it.
    fn disconnect(&self);
}

impl Connection for TcpStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }

    fn duplicate(&self) -> io::Result<Box<dyn Connection>> {
        Ok(Box::new(self.try_clone()?))
    }

    fn disconnect(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

impl Connection for UnixStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }

    fn duplicate(&self) -> io::Result<Box<dyn Connection>> {
        Ok(Box::new(self.try_clone()?))
    }

    fn disconnect(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

impl Server {
    /// Listens. A socket that an earlier server has left is replaced.
    ///
    /// # Errors
    /// Those of bind(2), `AddrInUse` if another program listens there; `AlreadyExists` if the path of the socket is another file.
    pub fn start(listen: &Listen, published: Published) -> io::Result<Self> {
        let (listener, address) = match listen {
            Listen::Loopback(address) => {
                let listener = TcpListener::bind(address)?;
                let address = listener.local_addr()?;
                (Listener::Tcp(listener), Listen::Loopback(address))
            }
            Listen::Socket(path) => {
                match path.symlink_metadata() {
                    Ok(found) if found.file_type().is_socket() => {
                        if UnixStream::connect(path).is_ok() {
                            return Err(ErrorKind::AddrInUse.into());
                        }
                        fs::remove_file(path)?;
                    }
                    Ok(_) => {
                        return Err(io::Error::new(
                            ErrorKind::AlreadyExists,
                            "found a file; needed: a socket, or nothing",
                        ));
                    }
                    Err(_) => {}
                }
                let listener = UnixListener::bind(path)?;
                open_to_group(path)?;
                (Listener::Unix(listener), listen.clone())
            }
        };
        let ends = Arc::new(AtomicBool::new(false));
        let of_thread = ends.clone();
        let thread = std::thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || serve(&listener, &published, &of_thread))?;
        Ok(Self { address, ends, thread: Some(thread) })
    }

    /// The address with the port that the kernel has chosen.
    pub fn address(&self) -> &Listen {
        &self.address
    }
}

/// Gives this process's socket mode 660. If others can write to the folder, the name may lead to another file by now, whose mode
/// stays.
fn open_to_group(path: &Path) -> io::Result<()> {
    // The standard library takes no O_PATH with musl, where it is a part of O_ACCMODE.
    let socket = open(path, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?;
    let opened = PathBuf::from(format!("/proc/self/fd/{}", socket.as_raw_fd()));
    if !is_own_listener(&opened).unwrap_or(false) {
        let why = "found another file in the place of the new socket; needed: a folder in which only root can write";
        return Err(io::Error::other(why));
    }
    fs::set_permissions(opened, Permissions::from_mode(0o660))
}

/// True if this process listens on a socket.
fn is_own_listener(path: &Path) -> nix::Result<bool> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let client = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(client.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(getsockopt(&client, PeerCredentials)?.pid() == getpid().as_raw())
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // A connection ends the wait of the thread.
        let is_woken = match &self.address {
            Listen::Loopback(address) => TcpStream::connect_timeout(address, CLIENT_TIMEOUT).is_ok(),
            Listen::Socket(path) => UnixStream::connect(path).is_ok(),
        };
        if is_woken && let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Listen::Socket(path) = &self.address {
            let _ = fs::remove_file(path);
        }
    }
}

/// The clients that are served, the oldest first.
#[derive(Default)]
struct Clients(Mutex<Served>);

#[derive(Default)]
struct Served {
    connected: VecDeque<(u64, Box<dyn Connection>)>,
    /// Number of the next client.
    next: u64,
    threads: usize,
}

impl Clients {
    fn locked(&self) -> MutexGuard<'_, Served> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a client, in the place of the oldest if there are too many. Returns its number; `None` if it cannot be served.
    fn add(&self, connection: &dyn Connection) -> Option<u64> {
        let duplicate = connection.duplicate().ok()?;
        let mut served = self.locked();
        if served.connected.len() >= MOST_CLIENTS
            && let Some((_, oldest)) = served.connected.pop_front()
        {
            oldest.disconnect();
        }
        if served.threads >= MOST_THREADS {
            return None;
        }
        let number = served.next;
        served.next += 1;
        served.threads += 1;
        served.connected.push_back((number, duplicate));
        Some(number)
    }

    /// The thread of a client ends.
    fn remove(&self, number: u64) {
        let mut served = self.locked();
        served.threads -= 1;
        served.connected.retain(|(other, _)| *other != number);
    }
}

fn serve(listener: &Listener, published: &Published, ends: &AtomicBool) {
    let clients = Arc::new(Clients::default());
    loop {
        let accepted: io::Result<Box<dyn Connection>> = match listener {
            Listener::Tcp(listener) => listener.accept().map(|(stream, _)| Box::new(stream) as Box<dyn Connection>),
            Listener::Unix(listener) => listener.accept().map(|(stream, _)| Box::new(stream) as Box<dyn Connection>),
        };
        if ends.load(Ordering::Relaxed) {
            return;
        }
        let Ok(stream) = accepted else {
            // No descriptors are left, or a client has gone already.
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        let Some(number) = clients.add(stream.as_ref()) else { continue };
        let (published, of_thread) = (published.clone(), clients.clone());
        let answered = std::thread::Builder::new().stack_size(128 << 10).spawn(move || {
            let _ = answer(stream, &published);
            of_thread.remove(number);
        });
        if answered.is_err() {
            clients.remove(number);
        }
    }
}

fn answer(mut stream: Box<dyn Connection>, published: &Published) -> io::Result<()> {
    let Some(request) = request_of(stream.as_mut())? else { return Ok(()) };
    let text = published.text();
    let (status, kind, body): (&str, &str, &str) = match (path_of(&request), &text) {
        (Err(status), _) => (status, "text/plain", ""),
        (Ok("/metrics"), Some(Text { text, .. })) => ("200 OK", OPEN_METRICS, text),
        (Ok("/healthz"), Some(Text { until: Some(until), .. })) if *until < Instant::now() => {
            ("503 Service Unavailable", "text/plain", "the last scan is too old\n")
        }
        (Ok("/healthz"), Some(_)) => ("200 OK", "text/plain", "ok\n"),
        (Ok("/metrics" | "/healthz"), None) => ("503 Service Unavailable", "text/plain", "no scan yet\n"),
        (Ok(_), _) => ("404 Not Found", "text/plain", "needed: /metrics or /healthz\n"),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let until = Instant::now() + CLIENT_TIMEOUT;
    write_until(stream.as_mut(), head.as_bytes(), until)?;
    write_until(stream.as_mut(), body.as_bytes(), until)
}

/// The head of a request; `None` if it is too long or too slow.
fn request_of(stream: &mut dyn Connection) -> io::Result<Option<Vec<u8>>> {
    let until = Instant::now() + CLIENT_TIMEOUT;
    let (mut request, mut buffer) = (Vec::new(), [0; 1024]);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || request.len() >= MOST_REQUEST {
            return Ok(None);
        }
        stream.limit(left)?;
        match stream.read(&mut buffer)? {
            0 => return Ok(None),
            read => request.extend_from_slice(&buffer[..read]),
        }
    }
    Ok(Some(request))
}

/// The path of a GET request, without its query; or the status of the refusal.
fn path_of(request: &[u8]) -> Result<&str, &'static str> {
    let line = request.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let mut words = std::str::from_utf8(line).map_err(|_| "400 Bad Request")?.split(' ');
    match (words.next(), words.next(), words.next()) {
        (Some("GET"), Some(path), Some(version)) if version.starts_with("HTTP/1.") => {
            Ok(path.split('?').next().unwrap_or_default())
        }
        (Some(_), Some(_), Some(_)) => Err("405 Method Not Allowed"),
        _ => Err("400 Bad Request"),
    }
}

fn write_until(stream: &mut dyn Connection, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.limit(left)?;
        match stream.write(bytes)? {
            0 => return Err(ErrorKind::WriteZero.into()),
            written => bytes = &bytes[written..],
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(address: &Listen, request: &[u8]) -> String {
        let mut stream: Box<dyn Connection> = match address {
            Listen::Loopback(address) => Box::new(TcpStream::connect(address).unwrap()),
            Listen::Socket(path) => Box::new(UnixStream::connect(path).unwrap()),
        };
        stream.write_all(request).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    fn loopback() -> Listen {
        "127.0.0.1:0".parse().unwrap()
    }

    #[test]
    fn metrics_and_health_are_served() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        for listen in [loopback(), Listen::Socket(socket.clone())] {
            let published = Published::default();
            let server = Server::start(&listen, published.clone()).unwrap();
            let request = |path: &str| get(server.address(), format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes());
            assert!(request("/healthz").starts_with("HTTP/1.1 503 "));
            published.publish("a 1\n# EOF\n".to_owned(), CLIENT_TIMEOUT * 100);
            let metrics = request("/metrics?x=1");
            assert!(metrics.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text;"), "{metrics}");
            assert!(metrics.ends_with("Content-Length: 10\r\nConnection: close\r\n\r\na 1\n# EOF\n"), "{metrics}");
            assert!(request("/healthz").ends_with("ok\n"));
            published.publish("a 1\n# EOF\n".to_owned(), Duration::ZERO);
            assert!(
                request("/healthz").starts_with("HTTP/1.1 503 ") && request("/metrics").starts_with("HTTP/1.1 200 ")
            );
            assert!(request("/etc/passwd").starts_with("HTTP/1.1 404 "));
            assert!(get(server.address(), b"POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
            assert!(get(server.address(), b"\xff\xfe\r\n\r\n").starts_with("HTTP/1.1 400 "));
        }
        assert!(!socket.exists());
    }

    /// Clients that connect again and again had all places.
    #[test]
    fn idle_clients_keep_nobody_out() {
        let published = Published::default();
        published.publish("a 1\n".to_owned(), CLIENT_TIMEOUT * 100);
        let server = Server::start(&loopback(), published).unwrap();
        let Listen::Loopback(address) = *server.address() else { unreachable!() };
        let request = || -> std::io::Result<String> {
            let (mut stream, mut text) = (TcpStream::connect(address)?, String::new());
            stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
            stream.read_to_string(&mut text).map(|_| text)
        };
        let (mut idle, mut answers) = (Vec::new(), 0);
        // On a busy machine the threads of disconnected clients have not ended at each request.
        for _ in 0..60 {
            idle.extend((0..MOST_CLIENTS).map(|_| TcpStream::connect(address).unwrap()));
            answers += u32::from(request().is_ok_and(|text| text.contains("200 OK")));
            if answers == 20 {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        assert_eq!(answers, 20, "idle clients keep others out");
        drop(idle);
    }

    #[test]
    fn an_endless_request_is_cut_off() {
        let server = Server::start(&loopback(), Published::default()).unwrap();
        let Listen::Loopback(address) = *server.address() else { unreachable!() };
        let mut stream = TcpStream::connect(address).unwrap();
        let sent = (0..10_000).take_while(|_| stream.write_all(&[b'x'; 1024]).is_ok()).count();
        assert!(sent < 10_000);
    }

    #[test]
    fn a_socket_on_which_another_program_listens_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let listen = Listen::Socket(folder.path().join("socket"));
        let first = Server::start(&listen, Published::default()).unwrap();
        assert_eq!(Server::start(&listen, Published::default()).unwrap_err().kind(), ErrorKind::AddrInUse);
        assert!(get(&listen, b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 503 "));
        drop(first);
        // Left by a server that was killed.
        drop(UnixListener::bind(folder.path().join("socket")).unwrap());
        // A child of another test has the socket open until it executes its program.
        let until = Instant::now() + Duration::from_secs(60);
        while let Err(error) = Server::start(&listen, Published::default()) {
            assert!(error.kind() == ErrorKind::AddrInUse && Instant::now() < until, "{error}");
            std::thread::yield_now();
        }
    }

    /// A user who can write to the folder may put a link there after the bind.
    #[test]
    fn only_the_new_socket_gets_the_mode() {
        let folder = tempfile::tempdir().unwrap();
        let [socket, secret, link] = ["socket", "secret", "link"].map(|name| folder.path().join(name));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let _listener = UnixListener::bind(&socket).unwrap();
        fs::write(&secret, "").unwrap();
        for path in [&socket, &secret] {
            fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
            std::os::unix::fs::symlink(path, &link).unwrap();
            assert!(open_to_group(&link).is_err());
            fs::remove_file(&link).unwrap();
        }
        assert!(open_to_group(&secret).is_err());
        assert_eq!((mode(&socket), mode(&secret)), (0o600, 0o600));
        open_to_group(&socket).unwrap();
        assert_eq!(mode(&socket), 0o660);
    }

    #[test]
    fn a_file_in_the_place_of_the_socket_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "text").unwrap();
        assert!(Server::start(&Listen::Socket(path.clone()), Published::default()).is_err());
        assert_eq!(fs::read_to_string(path).unwrap(), "text");
    }
}

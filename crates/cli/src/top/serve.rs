//! `bfc top --openmetrics --listen`: the metrics by HTTP, for Prometheus. It answers `GET /metrics` and nothing else.
//!
//! Each connection gets one answer, a deadline and its own thread, and their number is limited. So a client that sends
//! or reads slowly, or not at all, neither delays the others nor uses more than its share.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use crate::output::complain;

/// More than Prometheus sends. Its requests have some hundred bytes.
const MOST_REQUEST: usize = 8 << 10;
const MOST_CONNECTIONS: usize = 16;
/// The maximum duration of a connection.
const DEADLINE: Duration = Duration::from_secs(5);
/// Tells Prometheus that the text is OpenMetrics.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// Reads `9465`, `127.0.0.1:9465`, `[::1]:9465` or `localhost:9465`. A port alone listens on the loopback device,
/// because every client that reaches the address may read the metrics.
pub fn parse_address(text: &str) -> Result<String, String> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok(format!("{}:{port}", Ipv4Addr::LOCALHOST));
    }
    let (host, port) = text.rsplit_once(':').map_or((None, text), |(host, port)| (Some(host), port));
    let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    if is_number && port.parse::<u16>().is_err() {
        return Err(format!("{port} is no port: ports are 0 to 65535"));
    }
    if is_number && host.is_some_and(|host| !host.is_empty()) {
        return Ok(text.to_owned());
    }
    Err("not an address: write PORT for 127.0.0.1, or ADDRESS:PORT such as 0.0.0.0:9465".to_owned())
}

/// Answers requests at an address with what `metrics` returns, until the command is ended.
pub fn serve(address: &str, metrics: impl Fn() -> String + Send + Sync + 'static) -> Result<()> {
    let listener = TcpListener::bind(address).map_err(|error| {
        let advice = match error.kind() {
            ErrorKind::AddrNotAvailable => "it is no address of this machine",
            _ => "choose another port, or 0 for any free one",
        };
        anyhow!("cannot listen on {address}: {error}; {advice}")
    })?;
    complain(format_args!("metrics at http://{}/metrics", listener.local_addr()?));
    let shared = Arc::new((metrics, AtomicUsize::new(0)));
    loop {
        let Ok((stream, _)) = listener.accept() else {
            // The client has gone, or no descriptors are available at the moment.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        if shared.1.fetch_add(1, Ordering::Relaxed) >= MOST_CONNECTIONS {
            shared.1.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let own = shared.clone();
        let answer = move || {
            // A client that has gone, or that is too slow, gets no answer.
            let _ = converse(stream, &own.0);
            own.1.fetch_sub(1, Ordering::Relaxed);
        };
        if thread::Builder::new().spawn(answer).is_err() {
            shared.1.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn converse(stream: TcpStream, metrics: impl Fn() -> String) -> io::Result<()> {
    let mut client = Timed { stream, end: Instant::now() + DEADLINE };
    let request = read_request(&mut client)?;
    let (status, kind, body) = match request.as_deref().map(target) {
        None => ("431 Request Header Fields Too Large", PLAIN, "the request is too long\n".to_owned()),
        Some(None) => ("400 Bad Request", PLAIN, "this is not HTTP/1\n".to_owned()),
        Some(Some(("GET", "/metrics"))) => ("200 OK", OPENMETRICS, metrics()),
        Some(Some((_, "/metrics"))) => {
            ("405 Method Not Allowed\r\nAllow: GET", PLAIN, "use GET\n".to_owned())
        }
        Some(Some(_)) => ("404 Not Found", PLAIN, "the metrics are at /metrics\n".to_owned()),
    };
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    client.write_all(answer.as_bytes())?;
    // Closing with unread data would reset the connection, and the client might lose the answer.
    client.stream.shutdown(Shutdown::Write)?;
    let mut rest = [0; 1024];
    while client.read(&mut rest)? != 0 {}
    Ok(())
}

/// Reads up to the empty line that ends a request without a body. None if it is too long.
fn read_request(client: &mut Timed) -> io::Result<Option<Vec<u8>>> {
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && !request.windows(2).any(|end| end == b"\n\n") {
        let count = client.read(&mut part)?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        request.extend_from_slice(&part[..count]);
        if request.len() > MOST_REQUEST {
            return Ok(None);
        }
    }
    Ok(Some(request))
}

/// The method and the path of a request, without a query.
fn target(request: &[u8]) -> Option<(&str, &str)> {
    let line = request.split(|&byte| byte == b'\n').next()?;
    let mut words = str::from_utf8(line).ok()?.trim_end().split(' ');
    let (method, path, version) = (words.next()?, words.next()?, words.next()?);
    let is_http = version.starts_with("HTTP/1.") && words.next().is_none();
    is_http.then(|| (method, path.split('?').next().unwrap_or(path)))
}

/// A connection whose calls fail once its time is over.
struct Timed {
    stream: TcpStream,
    end: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_of_the_loopback_device() {
        assert_eq!(parse_address("9465").as_deref(), Ok("127.0.0.1:9465"));
        for address in ["0.0.0.0:9465", "[::1]:0", "localhost:80"] {
            assert_eq!(parse_address(address).as_deref(), Ok(address));
        }
        for wrong in ["", ":9465", "65536", "127.0.0.1", "localhost:", "a:b", "-1"] {
            assert!(parse_address(wrong).is_err(), "{wrong:?} was taken");
        }
    }

    #[test]
    fn a_request_has_a_method_and_a_path() {
        assert_eq!(target(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"), Some(("GET", "/metrics")));
        assert_eq!(target(b"POST /a?b=c HTTP/1.0\n\n"), Some(("POST", "/a")));
        for wrong in [
            &b"GET /metrics\r\n\r\n"[..],
            b"\x16\x03\x01\n\n",
            b"GET / HTTP/2\n\n",
            b"GET  / HTTP/1.1\n\n",
            b"",
        ] {
            assert_eq!(target(wrong), None, "{wrong:?}");
        }
    }
}

//! A tiny server for tests: says what it was told to, one answer after the other, and keeps what it heard.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use parking_lot::Mutex;

/// One answer of the server: its bytes, none at all, or the end of the connection.
pub(crate) enum Say {
    Bytes(Vec<u8>),
    Nothing,
    Close,
}

pub(crate) struct Server {
    pub(crate) at: SocketAddr,
    pub(crate) heard: Arc<Mutex<Vec<String>>>,
    pub(crate) connections: Arc<Mutex<usize>>,
}

/// Answers one request after the other with what `says` holds, on any connection; then it closes them.
pub(crate) fn server(says: impl IntoIterator<Item = Say>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let made = Server { at: listener.local_addr().unwrap(), heard: Arc::default(), connections: Arc::default() };
    let (heard, connections) = (made.heard.clone(), made.connections.clone());
    let says: Arc<Mutex<VecDeque<Say>>> = Arc::new(Mutex::new(says.into_iter().collect()));
    let thread = |work: Box<dyn FnOnce() + Send>| std::thread::Builder::new().spawn(work).unwrap();
    thread(Box::new(move || {
        while let Ok((stream, _)) = listener.accept() {
            *connections.lock() += 1;
            let (heard, says) = (heard.clone(), says.clone());
            thread(Box::new(move || {
                while let Some(request) = read(&stream) {
                    heard.lock().push(request);
                    let say = says.lock().pop_front();
                    match say {
                        Some(Say::Bytes(bytes)) => (&stream).write_all(&bytes).unwrap_or(()),
                        Some(Say::Nothing) => {}
                        Some(Say::Close) | None => return,
                    }
                }
            }));
        }
    }));
    made
}

pub(crate) fn read(stream: &TcpStream) -> Option<String> {
    let mut reader = BufReader::new(stream);
    let mut text = String::new();
    while !text.ends_with("\r\n\r\n") {
        if reader.read_line(&mut text).ok()? == 0 {
            return None;
        }
    }
    let length = text.lines().find_map(|l| l.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    Some(text + &String::from_utf8_lossy(&body))
}

pub(crate) fn ok(body: &str) -> Say {
    answer("200 OK", "", body)
}

pub(crate) fn answer(status: &str, headers: &str, body: &str) -> Say {
    Say::Bytes(format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes())
}

impl Server {
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.at)
    }
}

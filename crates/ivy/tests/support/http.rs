//! HTTP as it is on the wire, so that tests can also send what no client library would.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(30);

/// Speaks to one address, a connection a request.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    address: String,
}

/// An answer, read to its end.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Client {
    pub(crate) fn new(address: &str) -> Self {
        Self {
            address: address.to_owned(),
        }
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], b"")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_with(path, &[], body)
    }

    pub(crate) fn post_with(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        let json = [("content-type", "application/json")];
        self.send(
            "POST",
            path,
            &[&json, headers].concat(),
            body.to_string().as_bytes(),
        )
    }

    pub(crate) fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        let mut stream = self.open(method, path, headers, body.len());
        stream.write_all(body).unwrap();
        Answer::read(&mut stream)
    }

    /// Sends the head of a request whose body will have `num_bytes`.
    pub(crate) fn open(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        num_bytes: usize,
    ) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n");
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += &format!("content-length: {num_bytes}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream
    }
}

impl Answer {
    pub(crate) fn read(stream: &mut TcpStream) -> Self {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let end = bytes
            .windows(4)
            .position(|window| window == b"\r\n\r\n")
            .expect("a whole head");
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines
            .next()
            .unwrap()
            .split(' ')
            .nth(1)
            .unwrap()
            .parse()
            .unwrap();
        let headers = lines
            .map(|line| line.split_once(": ").unwrap())
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        Self {
            status,
            headers,
            body: bytes[end + 4..].to_vec(),
        }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|header| header.0 == name)
            .map(|header| header.1.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.header("content-type"), Some("application/json"));
        serde_json::from_slice(&self.body).unwrap()
    }

    /// `error` of an error body, whose four fields must be there.
    pub(crate) fn error(&self) -> Value {
        let body = self.json();
        let error = body["error"].as_object().expect("an error body");
        let fields: Vec<&str> = error.keys().map(String::as_str).collect();
        assert_eq!(fields, ["code", "message", "param", "type"]);
        assert!(error["message"].is_string() && error["type"].is_string());
        body["error"].clone()
    }

    /// `error` and `error_type` of TEI's envelope, which holds nothing else.
    pub(crate) fn tei_error(&self) -> (String, String) {
        let body = self.json();
        let fields: Vec<&str> = body
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        assert_eq!(fields, ["error", "error_type"]);
        let text = |field: &str| body[field].as_str().unwrap().to_owned();
        (text("error"), text("error_type"))
    }

    /// A good answer's JSON, whatever its shape.
    pub(crate) fn value<T: serde::de::DeserializeOwned>(&self) -> T {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        serde_json::from_value(self.json()).unwrap()
    }

    /// The vectors of a good answer, in order.
    pub(crate) fn vectors(&self) -> Vec<Vec<f32>> {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        let body = self.json();
        assert_eq!(body["object"], "list");
        let data = body["data"].as_array().unwrap();
        let vector = |(index, item): (usize, &Value)| {
            assert_eq!(
                (&item["index"], &item["object"]),
                (&index.into(), &"embedding".into())
            );
            serde_json::from_value(item["embedding"].clone()).unwrap()
        };
        data.iter().enumerate().map(vector).collect()
    }
}

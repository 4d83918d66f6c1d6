//! The whole program against a tiny server of blocking threads.

#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::Value;

const RIGHT: &str = r#"{"data":[{"index":0,"embedding":[0.6,0.8]}],"usage":{"prompt_tokens":3}}"#;

/// Answers each request, on a thread a connection, after the pause that its path names.
fn serve() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || answer_all(&stream.unwrap()));
        }
    });
    address
}

fn answer_all(stream: &TcpStream) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut stream = stream;
    loop {
        let (mut path, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let line = line.trim().to_ascii_lowercase();
            if let Some(rest) = line.strip_prefix("post /") {
                path = rest.split(' ').next()?.to_owned();
            } else if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.parse().ok()?;
            } else if line.is_empty() {
                break;
            }
        }
        reader.read_exact(&mut vec![0; length]).ok()?;
        if let Some(ms) = path.strip_prefix("sleep/") {
            thread::sleep(Duration::from_millis(ms.parse().ok()?));
        }
        if path == "vanish" {
            return None;
        }
        let status = if path == "full" { "503 Full" } else { "200 OK" };
        write!(
            stream,
            "HTTP/1.1 {status}\r\ncontent-length: {}\r\nx-flowerbed-queue-us: 10\r\n\
             x-flowerbed-step-us: 20\r\n\r\n{RIGHT}",
            RIGHT.len()
        )
        .ok()?;
    }
}

fn load(plan: &str, stream: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.jsonl");
    fs::write(&path, plan).unwrap();
    let out = Command::new(env!("CARGO_BIN_EXE_flowerbed-loadgen"))
        .args(["--target", &serve(), "--stream"])
        .arg(format!("plan={},{stream}", path.display()))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{errors}");
    serde_json::from_slice(&out.stdout).unwrap()
}

fn line(path: &str) -> String {
    format!("{{\"path\": \"/{path}\", \"body\": {{}}, \"rows\": 1}}\n")
}

#[test]
fn a_schedule_is_kept_and_answers_are_counted() {
    let report = load(&line(""), "constant=200,seconds=1");
    assert_eq!(report["sent"], 200);
    assert_eq!(report["ok"], 200);
    assert_eq!(report["by_status"]["200"], 200);
    assert_eq!(report["queue_ms"]["p50"], 0.01);
    assert_eq!(report["step_ms"]["max"], 0.02);
    assert!(report["tokens_per_second"].as_f64().unwrap() > 500.0);
    assert!(report["connections"].as_u64().unwrap() < 50);
}

#[test]
fn a_slow_server_cannot_slow_the_schedule_down() {
    let report = load(&line("sleep/400"), "constant=50,seconds=0.5");
    // A closed loop would have sent two.
    assert_eq!(report["sent"], 25);
    assert_eq!(report["ok"], 25);
    assert!(report["latency_ms"]["p50"].as_f64().unwrap() >= 400.0);
    assert!(report["seconds"].as_f64().unwrap() < 5.0);
}

#[test]
fn arrivals_beyond_the_limit_of_open_requests_are_counted_as_not_sent() {
    let report = load(&line("sleep/400"), "constant=50,seconds=0.2,max_open=4");
    assert_eq!(report["sent"], 4);
    assert_eq!(report["errors"]["not sent"], 6);
}

#[test]
fn a_closed_loop_waits_for_its_answers_and_keeps_its_connections() {
    let report = load(&line("sleep/20"), "callers=3,seconds=30,max_requests=12");
    assert_eq!(report["sent"], 12);
    assert_eq!(report["connections"], 3);
}

#[test]
fn a_warm_up_opens_connections_and_is_not_counted() {
    let report = load(&line("sleep/20"), "constant=100,seconds=0.3,warm_up=8");
    assert_eq!(report["sent"], 30);
    assert_eq!(report["ok"], 30);
    assert_eq!(report["connections"], 8);
}

#[test]
fn lost_refused_and_wrong_answers_are_told_apart() {
    let wrong = r#"{"path": "/", "body": {}, "rows": 2}"#;
    let hang_up = r#"{"path": "/sleep/900", "body": {}, "hang_up_ms": 20}"#;
    let plan = [
        &line(""),
        &line("vanish"),
        &line("full"),
        wrong,
        "\n",
        hang_up,
    ]
    .concat();
    let report = load(&plan, "callers=1,max_requests=5");
    assert_eq!(report["ok"], 1);
    assert_eq!(report["errors"]["no answer"], 1);
    assert_eq!(report["hung_up"], 1);
    assert_eq!(report["unexpected"], 1);
    assert_eq!(report["wrong"], 2);
    assert_eq!(report["wrong_reasons"][0], "503 without Retry-After");
    assert_eq!(report["wrong_reasons"][1], "1 rows instead of 2");
}

#[test]
fn other_machines_are_refused() {
    let out = Command::new(env!("CARGO_BIN_EXE_flowerbed-loadgen"))
        .args([
            "--target",
            "http://192.0.2.1",
            "--stream",
            "plan=x,callers=1",
        ])
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&out.stderr).contains("loopback"));
}

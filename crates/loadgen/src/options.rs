//! The command line: a loopback target and streams, each `key=value` pairs joined by commas.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::time::Duration;

use http::Uri;

use crate::arrivals::Pace;
use crate::check::Check;

/// How to call it.
pub const USAGE: &str = "\
usage: flowerbed-loadgen --target http://127.0.0.1:PORT [--threads N] [--golden FILE]
                         --stream KEY=VALUE,... ...

Sends the requests of a plan to a server on this machine; prints one JSON object a stream.

  --target URL    a gateway, or a worker as grpc://127.0.0.1:PORT
  --threads N     that send and receive (1)
  --golden FILE   JSON lines {\"id\", \"vector\": base64 of little-endian float32}
  --stream ...    one stream; repeat it for several at once:
    plan=FILE         JSON lines {\"body\" or \"raw_body\", \"method\", \"path\", \"headers\", \"rows\",
                      \"expect\": [statuses], \"hang_up_ms\", \"golden\": [ids]}, sent in turn;
                      for a worker {\"run\": {\"ids\": [[ids], ...], \"lane\"}, ...}
    poisson=RATE      open loop, or constant=RATE; latencies count from the intended time
    callers=N         closed loop, instead of a rate
    seconds=S         length of the schedule (10); what was sent is waited for
    max_requests=N    at most so many (1000000)
    max_open=N        an arrival beyond so many open requests is not sent but counted (2048)
    timeout=S         of one request (120)
    warm_up=N         requests at once before the schedule, which are not counted (0); they leave
                      N connections open, as a client has that has run for a while
    seed=N            of the Poisson times (1)
    tolerance=X       largest difference from a golden vector (0.0001)
    check=no          answers are not looked at
    name=NAME         in the report
";

/// What cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line.
    #[error("{0}")]
    Usage(String),
    /// The plan or the golden vectors.
    #[error("{0}")]
    Plan(String),
}

/// What is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Over HTTP.
    Gateway(SocketAddr),
    /// By `Run`, over gRPC.
    Worker(SocketAddr),
}

/// All of the command line.
#[derive(Clone, Debug)]
pub struct Options {
    /// On loopback.
    pub target: Target,
    /// That send and receive.
    pub num_threads: usize,
    /// Vectors that plans name.
    pub golden: Option<PathBuf>,
    /// Run at once.
    pub streams: Vec<StreamOptions>,
}

/// One stream.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// In the report.
    pub name: String,
    /// What is sent.
    pub plan: PathBuf,
    /// When it is sent.
    pub pace: Pace,
    /// No request begins later than this.
    pub length: Duration,
    /// Requests in all.
    pub max_requests: usize,
    /// Requests at once.
    pub max_open: usize,
    /// Of one request.
    pub timeout: Duration,
    /// Requests at once before the schedule.
    pub warm_up: usize,
    /// Of answers.
    pub check: Check,
}

impl Options {
    /// Reads the arguments after the program's name.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self, Error> {
        let (mut target, mut golden, mut streams) = (None, None, Vec::new());
        let mut num_threads = 1;
        let mut arguments = arguments.into_iter();
        while let Some(option) = arguments.next() {
            let mut value = || {
                let missing = || Error::Usage(format!("{option} needs a value\n\n{USAGE}"));
                arguments.next().ok_or_else(missing)
            };
            match option.as_str() {
                "--target" => target = Some(loopback(&value()?)?),
                "--threads" => {
                    let value = value()?;
                    let count = value.parse().ok().filter(|count| *count > 0);
                    let bad = || Error::Usage(format!("--threads {value}: must be 1 or more"));
                    num_threads = count.ok_or_else(bad)?;
                }
                "--golden" => golden = Some(PathBuf::from(value()?)),
                "--stream" => streams.push(stream(&value()?)?),
                _ => return Err(Error::Usage(format!("unknown option {option}\n\n{USAGE}"))),
            }
        }
        match target {
            Some(target) if !streams.is_empty() => Ok(Self {
                target,
                num_threads,
                golden,
                streams,
            }),
            _ => Err(Error::Usage(USAGE.to_owned())),
        }
    }
}

/// A load generator that can be pointed at other people's machines is a weapon.
fn loopback(url: &str) -> Result<Target, Error> {
    let refused = |reason: &str| Error::Usage(format!("--target {url}: {reason}"));
    let uri: Uri = url.parse().map_err(|_| refused("is no URL"))?;
    let target = match uri.scheme_str() {
        Some("http") => Target::Gateway,
        Some("grpc") => Target::Worker,
        _ => return Err(refused("must be http://HOST:PORT or grpc://HOST:PORT")),
    };
    if !matches!(uri.path(), "" | "/") {
        return Err(refused("must have no path"));
    }
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let addresses = (host, uri.port_u16().unwrap_or(80)).to_socket_addrs();
    let mut addresses = addresses.map_err(|_| refused("cannot be resolved"))?;
    addresses
        .find(|address| address.ip().is_loopback())
        .map(target)
        .ok_or_else(|| refused("is not on loopback; only this machine may be loaded"))
}

fn stream(text: &str) -> Result<StreamOptions, Error> {
    let refused = |reason: &str| Error::Usage(format!("--stream {text}: {reason}"));
    let (mut name, mut plan, mut pace, mut seed) = (None, None, None, 1);
    let mut tolerance = Some(1e-4);
    let mut options = StreamOptions {
        name: String::new(),
        plan: PathBuf::new(),
        pace: Pace::Callers(1),
        length: Duration::from_secs(10),
        max_requests: 1_000_000,
        max_open: 2_048,
        timeout: Duration::from_secs(120),
        warm_up: 0,
        check: Check::Nothing,
    };
    for pair in text.split(',') {
        let bad = || refused(&format!("{pair:?} is not understood"));
        let (key, value) = pair.split_once('=').ok_or_else(bad)?;
        let number = || {
            value
                .parse::<f64>()
                .ok()
                .filter(|x| *x > 0.0 && x.is_finite())
        };
        let count = || value.parse::<usize>().ok().filter(|count| *count > 0);
        match key {
            "name" => name = Some(value.to_owned()),
            "plan" => plan = Some(PathBuf::from(value)),
            "poisson" | "constant" | "callers" if pace.is_some() => {
                return Err(refused("one pace only"));
            }
            "poisson" => {
                let per_second = number().ok_or_else(bad)?;
                pace = Some(Pace::Poisson { per_second, seed });
            }
            "constant" => {
                let per_second = number().ok_or_else(bad)?;
                pace = Some(Pace::Constant { per_second });
            }
            "callers" => pace = Some(Pace::Callers(count().ok_or_else(bad)?)),
            "seconds" => options.length = seconds(number()).ok_or_else(bad)?,
            "timeout" => options.timeout = seconds(number()).ok_or_else(bad)?,
            "max_requests" => options.max_requests = count().ok_or_else(bad)?,
            "max_open" => options.max_open = count().ok_or_else(bad)?,
            "warm_up" => options.warm_up = count().ok_or_else(bad)?,
            "seed" => seed = value.parse().map_err(|_| bad())?,
            "tolerance" => tolerance = Some(value.parse().map_err(|_| bad())?),
            "check" if value == "no" => tolerance = None,
            _ => return Err(bad()),
        }
    }
    options.plan = plan.ok_or_else(|| refused("plan is missing"))?;
    options.pace = match pace.ok_or_else(|| refused("poisson, constant or callers is missing"))? {
        Pace::Poisson { per_second, .. } => Pace::Poisson { per_second, seed },
        other => other,
    };
    options.name = name.unwrap_or_else(|| options.plan.display().to_string());
    options.check = tolerance.map_or(Check::Nothing, |tolerance| Check::Rows { tolerance });
    Ok(options)
}

fn seconds(number: Option<f64>) -> Option<Duration> {
    number.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(target: &str, stream: &str) -> Result<Options, Error> {
        Options::parse(["--target", target, "--stream", stream].map(str::to_owned))
    }

    #[test]
    fn only_loopback_is_loaded() {
        let stream = "plan=p,callers=1";
        for good in [
            "http://127.0.0.1:8000",
            "http://[::1]:80",
            "http://localhost:1",
        ] {
            let Target::Gateway(address) = parse(good, stream).unwrap().target else {
                panic!("{good} is a gateway");
            };
            assert!(address.ip().is_loopback());
        }
        let worker = parse("grpc://127.0.0.1:7", stream).unwrap().target;
        assert_eq!(worker, Target::Worker(([127, 0, 0, 1], 7).into()));
        for bad in [
            "http://192.0.2.1:80",
            "http://0.0.0.0:80",
            "grpc://192.0.2.1:80",
            "https://127.0.0.1:1",
            "http://127.0.0.1:1/path",
            "x",
        ] {
            parse(bad, stream).unwrap_err();
        }
    }

    #[test]
    fn a_stream_is_read_in_any_order() {
        let options = parse(
            "http://127.0.0.1:1",
            "seed=9,poisson=200,name=q,plan=p,seconds=0.5",
        );
        let stream = options.unwrap().streams.remove(0);
        assert_eq!(stream.name, "q");
        assert_eq!(stream.length, Duration::from_millis(500));
        let per_second = 200.0;
        assert_eq!(
            stream.pace,
            Pace::Poisson {
                per_second,
                seed: 9
            }
        );
    }

    #[test]
    fn a_stream_that_says_nothing_clear_is_refused() {
        for bad in [
            "plan=p",
            "callers=1",
            "plan=p,callers=0",
            "plan=p,poisson=-1",
            "plan=p,x=1",
            "plan=p,callers=1,poisson=2",
            "plan=p,constant=inf",
            "plan",
        ] {
            parse("http://127.0.0.1:1", bad).unwrap_err();
        }
    }
}

//! `flowerbed-loadgen`: see `options::USAGE`.

use std::fs;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use flowerbed_loadgen::client::Client;
use flowerbed_loadgen::options::{Error, Options};
use flowerbed_loadgen::plan::{self, Golden};
use flowerbed_loadgen::report::Report;
use flowerbed_loadgen::stream;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// So that all streams are ready when the first schedule begins.
const LEAD: Duration = Duration::from_millis(50);
const TICKS_PER_SECOND: f64 = 100.0;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            drop(writeln!(io::stderr(), "error: {reason}"));
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::parse(std::env::args().skip(1))?;
    let golden = options.golden.as_deref().map(plan::read_golden);
    let golden = golden.transpose()?.unwrap_or_default();
    // One thread as a rule: it leaves the other cores to the server, which runs on the same machine.
    let mut builder = match options.num_threads {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    let runtime = builder
        .worker_threads(options.num_threads)
        .enable_all()
        .build()?;
    let reports = runtime.block_on(load(options, &golden))?;
    let cpu_seconds = cpu_seconds();
    let mut out = io::stdout().lock();
    for report in reports {
        let mut report = serde_json::to_value(report)?;
        report["client_cpu_seconds"] = cpu_seconds.into();
        writeln!(out, "{report}")?;
    }
    Ok(())
}

/// Runs all streams at once; the reports come in the order of the streams.
async fn load(options: Options, golden: &Golden) -> Result<Vec<Report>, Error> {
    let mut prepared = Vec::new();
    for stream in options.streams {
        let items = plan::read(&stream.plan, golden)?;
        let client = Arc::new(Client::open(options.target, &items).await?);
        stream::warm_up(&client, &items, stream.warm_up).await;
        prepared.push((items, client, stream));
    }
    let start = Instant::now() + LEAD;
    let mut running = JoinSet::new();
    for (number, (items, client, stream)) in prepared.into_iter().enumerate() {
        running.spawn(async move { (number, stream::run(stream, items, client, start).await) });
    }
    let mut reports = running.join_all().await;
    reports.sort_by_key(|(number, _)| *number);
    Ok(reports.into_iter().map(|(_, report)| report).collect())
}

/// Of this process: on a small machine the client takes time from the server.
fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: f64 = ticks.filter_map(|field| field.parse::<f64>().ok()).sum();
    Some(ticks / TICKS_PER_SECOND)
}

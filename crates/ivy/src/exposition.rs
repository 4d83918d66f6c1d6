//! Prometheus text: the gateway's own, and that of its workers, as one answer.
//!
//! A family's HELP and TYPE may stand once only, with all its samples behind them, so texts are not
//! joined but merged. Knows nothing of where they come from.

use std::fmt::Write as _;

/// Families in the order in which they were first seen.
#[derive(Debug, Default)]
pub(crate) struct Exposition {
    families: Vec<Family>,
}

#[derive(Debug)]
struct Family {
    name: String,
    /// HELP and TYPE.
    about: Vec<String>,
    samples: Vec<String>,
}

impl Exposition {
    /// Takes a text over; `replica` becomes a label of each of its samples.
    ///
    /// Lines that make no sense are left out: a worker is not trusted to spoil the rest.
    pub(crate) fn add(&mut self, text: &str, replica: Option<&str>) {
        let label = replica.map(|name| format!("replica=\"{}\"", escape(name)));
        let mut current = None;
        for line in text.lines() {
            if let Some(about) = line
                .strip_prefix("# HELP ")
                .or_else(|| line.strip_prefix("# TYPE "))
            {
                let name = about.split(' ').next().unwrap_or_default();
                let index = self.family(name);
                let known = &mut self.families[index].about;
                if !known.iter().any(|seen| seen[..7] == line[..7]) {
                    known.push(line.to_owned());
                }
                current = Some(index);
            } else if let Some(index) = current
                && let Some(sample) = labelled(line, label.as_deref())
                && line.starts_with(&self.families[index].name)
            {
                self.families[index].samples.push(sample);
            }
        }
    }

    /// The whole as text.
    pub(crate) fn render(&self) -> String {
        let mut text = String::new();
        for family in self.families.iter().filter(|f| !f.samples.is_empty()) {
            for line in family.about.iter().chain(&family.samples) {
                // Writing to a string cannot fail.
                let _ = writeln!(text, "{line}");
            }
        }
        text
    }

    fn family(&mut self, name: &str) -> usize {
        let known = self.families.iter().position(|family| family.name == name);
        known.unwrap_or_else(|| {
            self.families.push(Family {
                name: name.to_owned(),
                about: Vec::new(),
                samples: Vec::new(),
            });
            self.families.len() - 1
        })
    }
}

/// `name{labels} value` with one more label in front; `None` if the line is no sample.
fn labelled(line: &str, label: Option<&str>) -> Option<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let (name, rest) = line.split_at(line.find(|c| !is_name(c))?);
    let value = line.rsplit(' ').next()?;
    if name.is_empty() || value.parse::<f64>().is_err() {
        return None;
    }
    let Some(label) = label else {
        return Some(line.to_owned());
    };
    match rest.strip_prefix('{') {
        Some(labels) if labels.starts_with('}') => Some(format!("{name}{{{label}{labels}")),
        Some(labels) => Some(format!("{name}{{{label},{labels}")),
        None => Some(format!("{name}{{{label}}}{rest}")),
    }
}

fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: &str = "# HELP steps_total Steps.\n# TYPE steps_total counter\nsteps_total 3\n\n\
        # HELP wait_seconds Wait.\n# TYPE wait_seconds histogram\n\
        wait_seconds_bucket{lane=\"online\",le=\"+Inf\"} 2\nwait_seconds_sum{lane=\"online\"} 0.5\n";

    #[test]
    fn each_family_stands_once_and_each_sample_names_its_replica() {
        let mut all = Exposition::default();
        all.add("# TYPE up gauge\nup{replica=\"w\"} 1\n", None);
        all.add(WORKER, Some("worker-0"));
        all.add(WORKER, Some("gpu-7:\"1"));
        assert_eq!(
            all.render(),
            "# TYPE up gauge\nup{replica=\"w\"} 1\n\
             # HELP steps_total Steps.\n# TYPE steps_total counter\n\
             steps_total{replica=\"worker-0\"} 3\nsteps_total{replica=\"gpu-7:\\\"1\"} 3\n\
             # HELP wait_seconds Wait.\n# TYPE wait_seconds histogram\n\
             wait_seconds_bucket{replica=\"worker-0\",lane=\"online\",le=\"+Inf\"} 2\n\
             wait_seconds_sum{replica=\"worker-0\",lane=\"online\"} 0.5\n\
             wait_seconds_bucket{replica=\"gpu-7:\\\"1\",lane=\"online\",le=\"+Inf\"} 2\n\
             wait_seconds_sum{replica=\"gpu-7:\\\"1\",lane=\"online\"} 0.5\n"
        );
    }

    #[test]
    fn lines_that_are_no_samples_of_a_family_are_left_out() {
        let mut all = Exposition::default();
        let noise =
            "stray 1\n# TYPE good counter\n<html>\nother 2\ngood x\ngood\n\u{e9} 1\ngood 4\n# TYPE";
        all.add(noise, Some("w"));
        assert_eq!(all.render(), "# TYPE good counter\ngood{replica=\"w\"} 4\n");
    }
}

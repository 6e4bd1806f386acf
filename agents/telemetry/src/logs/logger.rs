//! The logger of a process: prints records to a console and forwards them to the coordinator once it is known.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Metadata, Subscriber};
use tracing_log::NormalizeEvent;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::{AgentName, Level, LogFormat, LogRecord};

/// Crates that carry records over the network.
const TRANSPORT_CRATES: [&str; 6] = ["h2", "hyper", "rustls", "tonic", "tower", "tokio_util"];

/// Maximum number of records held until the role can forward them. Beyond it the oldest are dropped.
const MAX_HELD_RECORDS: usize = 1024;

type ConsoleSink = dyn Fn(&str) + Send + Sync;
type ForwardSink = dyn Fn(LogRecord) + Send + Sync;

/// Prints and forwards the records of this process. Clones share one logger.
#[derive(Clone)]
pub struct Logger {
    shared: Arc<Shared>,
}

struct Shared {
    level: Level,
    format: LogFormat,
    console: Box<ConsoleSink>,
    state: Mutex<State>,
}

struct State {
    agent: AgentName,
    destination: Destination,
}

enum Destination {
    /// There is no destination yet: the newest records, and the number of records dropped.
    Held {
        records: VecDeque<LogRecord>,
        let_go: u64,
    },
    Forward(Arc<ForwardSink>),
}

thread_local! {
    /// Whether this thread is logging. Records that forwarding itself logs are ignored, because they would cause
    /// endless recursion.
    static LOGGING: Cell<bool> = const { Cell::new(false) };
}

/// Writes a line to stderr in one write. Errors are ignored: stderr may be closed.
pub fn print_to_stderr(line: &str) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

impl Logger {
    /// Creates a logger for `agent`, a name that may change (see [`Logger::set_agent`]). Records up to `level` are
    /// printed as one line in `format` through `console`. That is [`print_to_stderr`], or the function by which a
    /// progress bar prints above itself.
    pub fn new(
        agent: AgentName,
        level: Level,
        format: LogFormat,
        console: impl Fn(&str) + Send + Sync + 'static,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                level,
                format,
                console: Box::new(console),
                state: Mutex::new(State {
                    agent,
                    destination: Destination::Held { records: VecDeque::new(), let_go: 0 },
                }),
            }),
        }
    }

    /// Returns the layer of a subscriber that logs through this logger.
    pub fn layer<S>(&self) -> Box<dyn Layer<S> + Send + Sync>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let logger = self.clone();
        let wanted = filter_fn(move |metadata| metadata.is_event() && logger.wants(metadata));
        self.clone().with_filter(wanted.with_max_level_hint(LevelFilter::from(self.shared.level))).boxed()
    }

    /// Renames the agent: an agent gets its index when it joins.
    pub fn set_agent(&self, agent: AgentName) {
        self.state().agent = agent;
    }

    /// Forwards all records from now on, beginning with those held so far. `forward` runs on the logging thread and
    /// must not block. Records that it logs itself are ignored.
    pub fn forward(&self, forward: impl Fn(LogRecord) + Send + Sync + 'static) {
        let _guard = LoggingGuard::enter();
        let forward: Arc<ForwardSink> = Arc::new(forward);
        // The lock is held so that no new record is forwarded before those held.
        let mut state = self.state();
        let agent = state.agent.clone();
        let before = std::mem::replace(&mut state.destination, Destination::Forward(Arc::clone(&forward)));
        if let Destination::Held { records, let_go } = before {
            if let_go > 0 {
                let message = format!("{let_go} earlier records were dropped before this agent joined");
                forward(LogRecord::new(Level::Warning, agent.clone(), message));
            }
            for mut record in records {
                record.agent = agent.clone();
                forward(record);
            }
        }
    }

    /// Holds records again, as before the first [`Logger::forward`], because the coordinator was lost.
    pub fn hold(&self) {
        let mut state = self.state();
        if matches!(state.destination, Destination::Forward(_)) {
            state.destination = Destination::Held { records: VecDeque::new(), let_go: 0 };
        }
    }

    /// Returns whether a record is logged: records of our crates up to the level; records of other crates up to
    /// WARNING, and at DEBUG up to VERBOSE. For the crates that carry records to the coordinator the limit stays at
    /// warnings, because each record sent would cause further ones without end.
    fn wants(&self, metadata: &Metadata<'_>) -> bool {
        let level = Level::from(*metadata.level());
        let bound = match self.shared.level {
            bound if metadata.target().starts_with("millrace") => bound,
            Level::Debug if !TRANSPORT_CRATES.iter().any(|part| metadata.target().starts_with(part)) => Level::Verbose,
            bound => bound.min(Level::Warning),
        };
        level <= bound
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dispatch(&self, record: LogRecord) {
        (self.shared.console)(&match self.shared.format {
            LogFormat::Text => record.to_string(),
            LogFormat::Json => record.to_json(),
        });
        let mut state = self.state();
        match &mut state.destination {
            Destination::Held { records, let_go } => {
                records.push_back(record);
                if records.len() > MAX_HELD_RECORDS {
                    records.pop_front();
                    *let_go += 1;
                }
            }
            Destination::Forward(forward) => {
                let forward = Arc::clone(forward);
                drop(state);
                forward(record);
            }
        }
    }
}

impl<S> Layer<S> for Logger
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let Some(_guard) = LoggingGuard::enter() else {
            return;
        };
        // A record from the `log` crate has its target in a field.
        let bridged = event.normalized_metadata();
        let metadata = bridged.as_ref().unwrap_or_else(|| event.metadata());
        let mut said = EventFields::default();
        event.record(&mut said);
        let message = if metadata.target().starts_with("millrace") {
            said.message
        } else {
            format!("{}: {}", metadata.target(), said.message)
        };
        let agent = self.state().agent.clone();
        let mut record = LogRecord::new((*metadata.level()).into(), agent, message);
        record.fields = said.fields;
        self.dispatch(record);
    }
}

/// Collects the message and the fields of an event.
#[derive(Default)]
struct EventFields {
    message: String,
    fields: BTreeMap<String, String>,
}

impl EventFields {
    fn add(&mut self, field: &Field, value: String) {
        match field.name() {
            "message" => self.message = value,
            // Metadata of a record from the `log` crate.
            name if name.starts_with("log.") => {}
            name => drop(self.fields.insert(name.to_owned(), value)),
        }
    }
}

impl Visit for EventFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}"));
    }
}

/// Marks this thread as logging until it is dropped.
struct LoggingGuard;

impl LoggingGuard {
    /// Returns `None` if this thread is logging already.
    fn enter() -> Option<Self> {
        // `then_some` would create a guard in both cases, and dropping it would clear the mark.
        (!LOGGING.replace(true)).then(|| Self)
    }
}

impl Drop for LoggingGuard {
    fn drop(&mut self) {
        LOGGING.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use tracing_subscriber::layer::SubscriberExt;

    fn logger(level: Level) -> (Logger, mpsc::Receiver<String>) {
        let (shown, showing) = mpsc::channel();
        let agent = AgentName::new("cs2", 9).unwrap();
        let logger = Logger::new(agent, level, LogFormat::Text, move |line| {
            let (_, said) = line.split_once(' ').unwrap();
            let _ = shown.send(said.to_owned());
        });
        (logger, showing)
    }

    /// Runs `what` with the logger. One test at a time: tracing may remember for good to skip the records of a call
    /// site that is first reached while another thread installs a subscriber.
    fn logging_to<T>(logger: &Logger, what: impl FnOnce() -> T) -> T {
        static ONE_SUBSCRIBER: Mutex<()> = Mutex::new(());
        let _only = ONE_SUBSCRIBER.lock().unwrap_or_else(PoisonError::into_inner);
        let subscriber = tracing_subscriber::registry().with(logger.layer());
        tracing::subscriber::with_default(subscriber, what)
    }

    #[test]
    fn levels_and_records_of_other_crates() {
        macro_rules! say {
            ($target:literal) => {
                tracing::error!(target: $target, "a");
                tracing::warn!(target: $target, "b");
                tracing::info!(target: $target, "c");
                tracing::debug!(target: $target, "d");
                tracing::trace!(target: $target, "e");
            };
        }
        // Records of libraries that use `log` instead of `tracing`.
        tracing_log::LogTracer::init().unwrap();
        let through_log = |target: &str| {
            log::error!(target: target, "a");
            log::warn!(target: target, "b");
            log::info!(target: target, "c");
            log::debug!(target: target, "d");
            log::trace!(target: target, "e");
        };
        let cases =
            [(Level::Error, 1, 1, 1), (Level::Info, 3, 2, 2), (Level::Verbose, 4, 2, 2), (Level::Debug, 5, 4, 2)];
        for (level, ours, theirs, carriers) in cases {
            for bridged in [false, true] {
                let (logger, showing) = logger(level);
                logging_to(&logger, || {
                    if bridged {
                        ["millrace_engine::step", "mio::poll", "h2::client"]
                            .iter()
                            .for_each(|target| through_log(target));
                    } else {
                        say!("millrace_engine::step");
                        say!("mio::poll");
                        say!("h2::client");
                    }
                });
                let shown: Vec<_> = showing.try_iter().collect();
                let of = |target: &str| shown.iter().filter(|line| line.contains(target)).count();
                let (theirs_shown, carriers_shown) = (of("mio::poll: "), of("h2::client: "));
                let ours_shown = shown.len() - theirs_shown - carriers_shown;
                assert_eq!((ours_shown, theirs_shown, carriers_shown), (ours, theirs, carriers), "{level}: {shown:?}");
            }
        }
    }

    #[test]
    fn records_wait_for_the_coordinator_and_carry_the_agents_name() {
        let (logger, showing) = logger(Level::Info);
        logging_to(&logger, || {
            for number in 0..MAX_HELD_RECORDS + 2 {
                tracing::info!(target: "millrace", step = number, "before");
            }
        });
        assert_eq!(showing.try_recv().unwrap(), "INFO    cs2-9 before step=0");

        logger.set_agent(AgentName::new("cs2", 1).unwrap());
        let (forwarded, forwarding) = mpsc::channel();
        logger.forward(move |record| {
            tracing::error!(target: "millrace", "said while forwarding");
            let _ = forwarded.send(record);
        });
        logging_to(&logger, || tracing::warn!(target: "millrace", "after"));
        logger.hold();
        logging_to(&logger, || tracing::info!(target: "millrace", "held again"));

        let records: Vec<_> = forwarding.try_iter().collect();
        assert_eq!(records.len(), 1 + MAX_HELD_RECORDS + 1);
        assert!(records[0].message.starts_with("2 earlier records"));
        assert_eq!(records[1].fields["step"], "2");
        assert_eq!(records[MAX_HELD_RECORDS + 1].message, "after");
        assert!(records.iter().all(|record| record.agent.as_str() == "cs2-1"));
    }

    #[test]
    fn json_line_has_all_fields() {
        let (shown, showing) = mpsc::channel();
        let agent = AgentName::new("cs2", 9).unwrap();
        let logger = Logger::new(agent, Level::Info, LogFormat::Json, move |line| drop(shown.send(line.to_owned())));
        logging_to(&logger, || tracing::warn!(target: "millrace", step = 7, why = "a \"b\"", "odd\n"));
        let line = showing.try_recv().unwrap();
        assert_eq!(line.lines().count(), 1, "{line}");
        let record: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert!(record["timestamp"].as_str().unwrap().ends_with('Z'), "{line}");
        for (key, value) in [("level", "WARNING"), ("agent", "cs2-9"), ("message", "odd\n"), ("why", "a \"b\"")] {
            assert_eq!(record[key], value, "{line}");
        }
        assert_eq!(record["step"], "7");
    }
}

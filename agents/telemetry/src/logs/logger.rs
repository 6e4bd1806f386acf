//! The logger of one process: records go to a console and, once the role knows its coordinator, there too.

use std::{
    cell::Cell,
    collections::VecDeque,
    io::Write,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{AgentName, Level, Record};
use crate::error::{Error, Result};

/// Crates that carry records over the network.
const TRANSPORT: [&str; 6] = ["h2", "hyper", "rustls", "tonic", "tower", "tokio_util"];

/// Records held until the role can forward them; the oldest go first.
const HELD: usize = 1024;

type Console = dyn Fn(&str) + Send + Sync;
type Forward = dyn Fn(Record) + Send + Sync;

/// Shows and forwards what is logged in this process. Clones are one logger.
#[derive(Clone)]
pub struct Logger {
    shared: Arc<Shared>,
}

struct Shared {
    level: Level,
    console: Box<Console>,
    state: Mutex<State>,
}

struct State {
    agent: AgentName,
    destination: Destination,
}

enum Destination {
    /// Not known yet: the newest records, and how many were let go.
    Held { records: VecDeque<Record>, let_go: u64 },
    /// Known.
    Forward(Arc<Forward>),
}

thread_local! {
    /// Set while this thread logs: what forwarding itself logs is not logged, or it would never end.
    static LOGGING: Cell<bool> = const { Cell::new(false) };
}

/// Writes a line to stderr, in one piece; a closed stderr is nobody's business.
pub fn print_to_stderr(line: &str) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

impl Logger {
    /// A logger for `agent` (a name that may change, see [`Logger::set_agent`]) that shows records up to `level` through
    /// `console`: [`print_to_stderr`], or a progress bar's own way to print above itself.
    pub fn new(agent: AgentName, level: Level, console: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self {
            shared: Arc::new(Shared {
                level,
                console: Box::new(console),
                state: Mutex::new(State {
                    agent,
                    destination: Destination::Held { records: VecDeque::new(), let_go: 0 },
                }),
            }),
        }
    }

    /// Makes this the logger behind the `log` crate's macros, to be done once in a process.
    ///
    /// # Errors
    /// [`Error::LoggerInstalled`].
    pub fn install(&self) -> Result<()> {
        log::set_boxed_logger(Box::new(self.clone())).map_err(|_| Error::LoggerInstalled)?;
        log::set_max_level(self.shared.level.into());
        Ok(())
    }

    /// Names the agent anew: an agent learns its index when it joins.
    pub fn set_agent(&self, agent: AgentName) {
        self.state().agent = agent;
    }

    /// Hands every record to `forward` from now on, those held so far first. `forward` runs on the thread that logs and
    /// must return at once; what it logs itself is dropped.
    pub fn forward(&self, forward: impl Fn(Record) + Send + Sync + 'static) {
        let _guard = Guard::enter();
        let forward: Arc<Forward> = Arc::new(forward);
        // Under the lock, so that no record overtakes those held.
        let mut state = self.state();
        let agent = state.agent.clone();
        let before = std::mem::replace(&mut state.destination, Destination::Forward(Arc::clone(&forward)));
        if let Destination::Held { records, let_go } = before {
            if let_go > 0 {
                let message = format!("{let_go} earlier records were let go before this agent joined");
                forward(Record::new(Level::Warning, agent.clone(), message));
            }
            for mut record in records {
                record.agent = agent.clone();
                forward(record);
            }
        }
    }

    /// Holds records again, as before the first [`Logger::forward`]: the coordinator was lost.
    pub fn hold(&self) {
        let mut state = self.state();
        if matches!(state.destination, Destination::Forward(_)) {
            state.destination = Destination::Held { records: VecDeque::new(), let_go: 0 };
        }
    }

    /// Our own records up to the level; other crates' warnings, and more of them only when debugging. What carries records to
    /// the coordinator would speak of each of them again, and so for ever.
    fn wants(&self, metadata: &log::Metadata<'_>) -> bool {
        let level = Level::from(metadata.level());
        let bound = match self.shared.level {
            bound if metadata.target().starts_with("millrace") => bound,
            Level::Debug if !TRANSPORT.iter().any(|part| metadata.target().starts_with(part)) => Level::Verbose,
            bound => bound.min(Level::Warning),
        };
        level <= bound
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dispatch(&self, record: Record) {
        (self.shared.console)(&record.to_string());
        let mut state = self.state();
        match &mut state.destination {
            Destination::Held { records, let_go } => {
                records.push_back(record);
                if records.len() > HELD {
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

impl log::Log for Logger {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        self.wants(metadata)
    }

    fn log(&self, said: &log::Record<'_>) {
        let Some(_guard) = Guard::enter() else {
            return;
        };
        if !self.wants(said.metadata()) {
            return;
        }
        let message = if said.target().starts_with("millrace") {
            said.args().to_string()
        } else {
            format!("{}: {}", said.target(), said.args())
        };
        let agent = self.state().agent.clone();
        let mut record = Record::new(said.level().into(), agent, message);
        // The visitor never fails, so neither does the visit.
        let _ = said.key_values().visit(&mut Fields(&mut record));
        self.dispatch(record);
    }

    fn flush(&self) {}
}

struct Fields<'a>(&'a mut Record);

impl<'kvs> log::kv::VisitSource<'kvs> for Fields<'_> {
    fn visit_pair(&mut self, key: log::kv::Key<'kvs>, value: log::kv::Value<'kvs>) -> Result<(), log::kv::Error> {
        self.0.fields.insert(key.to_string(), value.to_string());
        Ok(())
    }
}

/// Marks this thread as logging.
struct Guard;

impl Guard {
    /// `None` if this thread is logging already.
    fn enter() -> Option<Self> {
        // Not `then_some`, which would make a guard, and by dropping it clear the mark, in either case.
        (!LOGGING.replace(true)).then(|| Self)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        LOGGING.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn logger(level: Level) -> (Logger, mpsc::Receiver<String>) {
        // The macros ask this global before they ask any logger.
        log::set_max_level(log::LevelFilter::Trace);
        let (shown, showing) = mpsc::channel();
        let agent = AgentName::new("cs2", 9).unwrap();
        let logger = Logger::new(agent, level, move |line| {
            let (_, said) = line.split_once(' ').unwrap();
            let _ = shown.send(said.to_owned());
        });
        (logger, showing)
    }

    #[test]
    fn levels_and_other_peoples_records() {
        let cases =
            [(Level::Error, 1, 1, 1), (Level::Info, 3, 2, 2), (Level::Verbose, 4, 2, 2), (Level::Debug, 5, 4, 2)];
        for (level, ours, theirs, carriers) in cases {
            let (logger, showing) = logger(level);
            for target in ["millrace_engine::step", "mio::poll", "h2::client"] {
                log::error!(logger: &logger, target: target, "a");
                log::warn!(logger: &logger, target: target, "b");
                log::info!(logger: &logger, target: target, "c");
                log::debug!(logger: &logger, target: target, "d");
                log::trace!(logger: &logger, target: target, "e");
            }
            let shown: Vec<_> = showing.try_iter().collect();
            let of = |target: &str| shown.iter().filter(|line| line.contains(target)).count();
            let (theirs_shown, carriers_shown) = (of("mio::poll: "), of("h2::client: "));
            let ours_shown = shown.len() - theirs_shown - carriers_shown;
            assert_eq!((ours_shown, theirs_shown, carriers_shown), (ours, theirs, carriers), "{level}: {shown:?}");
        }
    }

    #[test]
    fn records_wait_for_the_coordinator_and_carry_the_agents_name() {
        let (logger, showing) = logger(Level::Info);
        for number in 0..HELD + 2 {
            log::info!(logger: &logger, target: "millrace", step = number; "before");
        }
        assert_eq!(showing.try_recv().unwrap(), "INFO    cs2-9 before step=0");

        logger.set_agent(AgentName::new("cs2", 1).unwrap());
        let (forwarded, forwarding) = mpsc::channel();
        let own = logger.clone();
        logger.forward(move |record| {
            log::error!(logger: &own, target: "millrace", "said while forwarding");
            let _ = forwarded.send(record);
        });
        log::warn!(logger: &logger, target: "millrace", "after");
        logger.hold();
        log::info!(logger: &logger, target: "millrace", "held again");

        let records: Vec<_> = forwarding.try_iter().collect();
        assert_eq!(records.len(), 1 + HELD + 1);
        assert!(records[0].message.starts_with("2 earlier records"));
        assert_eq!(records[1].fields["step"], "2");
        assert_eq!(records[HELD + 1].message, "after");
        assert!(records.iter().all(|record| record.agent.as_str() == "cs2-1"));
    }
}

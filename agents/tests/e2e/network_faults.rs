//! Tests of a job whose connections are cut, delayed, blocked in one direction or both, and corrupted.

use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;

use super::harness::{TestDir, kill};
use super::job::{AGENTS, Job};
use super::ports::free_port;
use super::proxy::{Direction, Proxy};

const STEPS: u64 = 200;
const FAULTS: u64 = 30;
/// How long the run may take before it counts as hung: it takes half a minute.
const RUN_TIMEOUT: Duration = Duration::from_secs(300);

/// A generator of random numbers, splitmix64.
struct Random(u64);

impl Random {
    /// Returns a number below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// Starts all agents of `job`, each behind a proxy for its connection to the coordinator and one for those of its data
/// port; returns the proxies with their names.
async fn join_behind_proxies(job: &mut Job<'_>) -> Vec<(String, Arc<Proxy>)> {
    let mut proxies = Vec::new();
    for agent in AGENTS {
        let control = Proxy::start(job.listening("control").to_owned()).await;
        let mut arguments = vec!["--data_encryption".to_owned(), "off".to_owned()];
        if !agent.starts_with("cs2") {
            let listen = format!("127.0.0.1:{}", free_port());
            let data = Proxy::start(listen.clone()).await;
            arguments.extend(["--listen".to_owned(), listen, "--advertise".to_owned(), data.address.clone()]);
            proxies.push((format!("data of {agent}"), Arc::new(data)));
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        job.join_at(agent, &control.address, &arguments);
        proxies.push((format!("control of {agent}"), Arc::new(control)));
    }
    proxies
}

/// Injects a random fault into the connections of a proxy; one that lasts ends after a while. Returns its description.
fn strike(proxy: &Arc<Proxy>, random: &mut Random) -> &'static str {
    let pause = Duration::from_millis(50 + random.below(2500));
    let kind = match random.below(7) {
        0 => {
            proxy.cut();
            return "cut";
        }
        1 => {
            proxy.corrupt();
            return "corrupted";
        }
        2 => {
            proxy.repeat();
            return "repeated";
        }
        3 => {
            proxy.delay(Duration::from_millis(1 + random.below(30)));
            "delayed"
        }
        4 => {
            proxy.block(&[Direction::ToTarget]);
            "blocked to the target"
        }
        5 => {
            proxy.block(&[Direction::FromTarget]);
            "blocked from the target"
        }
        _ => {
            proxy.block(&[Direction::ToTarget, Direction::FromTarget]);
            "blocked"
        }
    };
    let proxy = proxy.clone();
    tokio::spawn(async move {
        tokio::time::sleep(pause).await;
        proxy.heal();
    });
    kind
}

/// Without encryption, only the agents' own checksums notice corrupted data. `MILLRACE_NETWORK_SEED` selects other
/// faults.
#[tokio::test(flavor = "multi_thread")]
async fn bits_are_independent_of_network_faults() {
    let seed = std::env::var("MILLRACE_NETWORK_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut random = Random(seed);
    let place = TestDir::new();
    place.params("params.yaml", &[("eval_frequency: 2", "eval_frequency: 40\n    checkpoint_steps: 30")]);
    let mut job = Job::coordinator_only(&place, STEPS, &["--data_encryption", "off"]);
    let proxies = join_behind_proxies(&mut job).await;
    let coordinator = job.coordinator_id();
    let timeout = tokio::spawn(async move {
        tokio::time::sleep(RUN_TIMEOUT).await;
        kill(coordinator, Signal::KILL);
    });
    for fault in 0..FAULTS {
        job.wait_for_step(1 + fault * (STEPS - 5) / FAULTS);
        let (name, proxy) = &proxies[random.below(proxies.len() as u64) as usize];
        println!("fault {fault}: {name} is {}", strike(proxy, &mut random));
    }
    assert_eq!(job.coordinator_end(), Some(0), "seed {seed}");
    timeout.abort();
    place.succeed(&format!("train_and_eval -p params.yaml -o whole --num_csx 1 --max_steps {STEPS}"));
    assert_eq!(place.result("m", STEPS), place.result("whole", STEPS), "seed {seed}");
    assert_eq!(place.evaluations("m"), place.evaluations("whole"), "seed {seed}");
}

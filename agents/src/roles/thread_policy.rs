//! Linux scheduling policies of a role's threads, see sched(7).
//!
//! A thread that transfers data wakes up for every message and needs little time. Under the normal policy, it preempts
//! a thread that computes, and so evicts that thread's data from the caches of the core. Under SCHED_BATCH, it waits
//! until a core is idle or the running thread's time slice ends.

use preempt_rt::sched::{Scheduler, SchedulerParams};

/// Sets the policy SCHED_BATCH for the calling thread, and for threads and processes that it starts afterwards.
pub fn use_batch_policy() {
    set(Scheduler::SCHED_BATCH);
}

/// Sets the normal policy for the calling thread, and for threads and processes that it starts afterwards. Used by
/// threads that compute, and by those that measure how long a thread waits for a core.
pub fn use_normal_policy() {
    set(Scheduler::SCHED_NORMAL);
}

/// Sets a policy. A system that forbids it costs speed only.
fn set(policy: Scheduler) {
    if let Err(error) = policy.with_params(SchedulerParams { priority: 0 }).set_current() {
        tracing::debug!("can't set the scheduling policy {policy:?} of a thread: {error}");
    }
}

#[cfg(test)]
mod tests {
    use preempt_rt::sched::{Pid, get_scheduler};

    use super::*;

    #[test]
    fn threads_inherit_the_policy_and_can_leave_it() {
        let policy = || get_scheduler(Pid::current_thread()).unwrap();
        let inherited = std::thread::spawn(move || {
            use_batch_policy();
            let of_child = std::thread::spawn(move || {
                let inherited = policy();
                use_normal_policy();
                (inherited, policy())
            });
            (policy(), of_child.join().unwrap())
        });
        let batch = Scheduler::SCHED_BATCH;
        assert_eq!(inherited.join().unwrap(), (batch, (batch, Scheduler::SCHED_NORMAL)));
    }
}

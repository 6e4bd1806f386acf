//! The invariants of the state machine, in random histories of a job.

use super::phases::phased_record;
use super::*;
use crate::random::Random;

/// Applies one random event to the job or its observation.
fn random_event(world: &mut JobFixture, random: &mut Random) {
    let some = |world: &JobFixture, random: &mut Random| {
        let count = world.seen.agents.len() as u64;
        (count > 0).then(|| world.seen.agents[random.below(count) as usize].role)
    };
    match random.below(13) {
        0 => world.spec().suspend = random.below(2) == 0,
        1 => world.spec().num_csx = 1 + random.below(4) as u32,
        2 | 3 => world.all(&AgentState::Ready),
        4 => {
            if let Some(role) = some(world, random) {
                let code = [0, 1, 3, 137, 143][random.below(5) as usize];
                world.ends(role, code, "Error");
            }
        }
        5 => {
            if let Some(role) = some(world, random) {
                world.seen.agents.retain(|agent| agent.role != role);
            }
        }
        6 => {
            let now = world.seen.now;
            let step = random.below(100);
            world.report(|report| (report.advanced, report.checkpoint) = (Some(now), Some((step, "d".to_owned()))));
        }
        11 if random.below(4) == 0 => {
            let creation_error = CreationError {
                message: "exceeded quota".to_owned(),
                is_temporary: random.below(2) == 0,
                ..Default::default()
            };
            world.seen.creation_error = Some(creation_error);
            if random.below(2) == 0 {
                world.seen.agents.pop();
            }
        }
        12 if world.seen.is_resizable => {
            let (used, held) = (world.status().num_csx, world.status().systems.len());
            if held > 0 && held < world.job.spec.num_csx as usize && random.below(2) == 0 {
                world.extend_grant();
            } else {
                world.report(|report| report.requested_csx = used);
            }
        }
        7 if random.below(8) == 0 => world.outcome([0, 1, 130][random.below(3) as usize], "Told"),
        8 => world.report(|report| report.saved = true),
        9 => world.advance_time(random.below(400) as i64),
        _ => world.advance_time(1),
    }
}

/// Applies some of the commands, and updates the ledger.
fn carry_out(world: &mut JobFixture, random: &mut Random) {
    for command in world.last.clone() {
        match command {
            JobCommand::RunAgents { attempt, .. } => {
                assert!(world.is(ConditionType::Admitted), "agents only for who is admitted");
                assert_eq!(attempt, world.attempt(), "of the attempt that is recorded");
                world.seen.desired_agents = wanted(world.status().num_csx.unwrap());
                if world.seen.agents.is_empty() {
                    world.create();
                } else if world.seen.are_agents_replaceable || world.seen.is_resizable {
                    world.create_missing();
                }
            }
            JobCommand::RemoveAgents { .. } if random.below(2) == 0 => world.remove_agents(),
            JobCommand::RemoveAgents { .. } => {
                world.seen.agents.iter_mut().for_each(|agent| agent.is_terminating = true)
            }
            JobCommand::RemoveAgent { instance, .. } => world.seen.agents.retain(|agent| agent.instance != instance),
            JobCommand::FollowCoordinator { .. } | JobCommand::StopAttempt { .. } | JobCommand::DeleteJob => {}
        }
    }
    let (attempt, admitted) = (world.attempt(), world.is(ConditionType::Admitted));
    let is_kept = world.seen.grant.as_ref().is_some_and(|grant| attempt < grant.attempt || admitted);
    if !is_kept {
        world.seen.grant = None;
        if !admitted && !world.spec().suspend && random.below(2) == 0 {
            world.grant();
        }
    }
}

#[test]
fn random_histories_keep_invariants_and_terminate() {
    let (mut resizes, mut completions) = (0, 0);
    for seed in 0..400 {
        let mut random = Random(seed);
        let mut world = JobFixture::new(1 + random.below(4) as u32);
        world.spec().failure_policy.max_restarts = random.below(4) as u32;
        world.seen.are_agents_replaceable = random.below(2) == 0;
        world.seen.is_resizable = random.below(2) == 0;
        let phases = 1 + random.below(3) as u32;
        world.seen.resolution = Some(Ok(phased_record(phases as usize)));
        let mut before = world.status();
        for _ in 0..120 {
            random_event(&mut world, &mut random);
            world.visit();
            let now = world.status();
            assert!(now.attempt >= before.attempt && now.restarts >= before.restarts, "seed {seed}");
            let retry = before.retry.clone().unwrap_or_default();
            assert!(
                now.attempt == before.attempt
                    || runs(&world).is_none()
                    || seconds_until_next_attempt(&retry, world.seen.now).is_none(),
                "seed {seed}: an attempt begins before it is due"
            );
            assert!(!before.is(ConditionType::Finished) || now.is(ConditionType::Finished), "seed {seed}");
            assert!(now.is(ConditionType::Admitted) != now.systems.is_empty(), "seed {seed}");
            assert!(
                before.is(ConditionType::Admitted) == now.is(ConditionType::Admitted) || world.seen.agents.is_empty(),
                "seed {seed}: systems come and go without agents"
            );
            let is_released = before.systems.iter().any(|system| !now.systems.contains(system));
            let is_excess = |agent: &ObservedAgent| agent.role == Role::Cs2 && agent.index >= now.systems.len() as u32;
            assert!(!is_released || !world.seen.agents.iter().any(is_excess), "seed {seed}: a used system is released");
            assert!(now.num_csx.unwrap_or(0) as usize <= now.systems.len(), "seed {seed}: more are used than held");
            let completed = now.completed_phase_count();
            let newly = completed - before.completed_phase_count();
            assert!(newly <= u32::from(now.attempt == before.attempt), "seed {seed}: an attempt completes one phase");
            assert!(completed < phases, "seed {seed}: the job has finished instead");
            resizes += usize::from(now.attempt == before.attempt && now.resizes > before.resizes);
            before = now;
            carry_out(&mut world, &mut random);
        }
        // From here on nothing fails.
        world.spec().suspend = false;
        world.seen.creation_error = None;
        for _ in 0..100 {
            world.visit();
            carry_out(&mut world, &mut random);
            world.advance_time(30);
            if matches!(world.status().state(), Some(JobState::Starting | JobState::Training | JobState::Evaluating)) {
                world.seen.agents.iter_mut().for_each(|agent| agent.is_terminating = false);
                if world.seen.report.as_ref().is_some_and(|report| report.outcome.is_none())
                    && !world.seen.agents.is_empty()
                {
                    world.outcome(0, "Succeeded");
                }
            }
        }
        assert!(world.is(ConditionType::Finished), "seed {seed}: {:?}", world.status().state());
        completions += world.status().completed_phase_count();
        let has_succeeded = world.status().state() == Some(JobState::Succeeded);
        assert!(!has_succeeded || world.status().completed_phase_count() + 1 == phases, "seed {seed}");
        assert!(!world.is(ConditionType::Admitted), "seed {seed}");
    }
    assert!(resizes > 50, "running jobs are resized: {resizes}");
    assert!(completions > 50, "jobs complete phases: {completions}");
}

use super::*;

#[test]
fn every_leaf_has_one_owner_and_no_system_more_than_it_can_hold() {
    for leaves in 1..=24 {
        for systems in 1..=leaves as usize {
            for per_system in 1..=4 {
                let rounds = rounds(leaves, systems, per_system);
                let fewest = leaves.div_ceil(per_system * systems as u32) as usize;
                assert!(rounds.len() <= fewest + fewest / ALIGNMENT_SLACK as usize, "{leaves} on {systems}");
                let owned: Vec<u32> = rounds.iter().flat_map(|r| r.owned.iter().cloned().flatten()).collect();
                assert_eq!(owned, (0..leaves).collect::<Vec<_>>());
                for round in &rounds {
                    assert_eq!(round.owned.first().unwrap().start, round.leaves.start);
                    assert_eq!(round.owned.last().unwrap().end, round.leaves.end);
                    assert!(round.owned.iter().all(|range| range.len() as u32 <= per_system));
                }
            }
        }
    }
}

fn sums(leaves: u32, owned: &[Range<u32>]) -> Vec<usize> {
    owned.iter().map(|share| LeafTree::new(leaves).cover(share.clone()).len()).collect()
}

#[test]
fn placement_is_small() {
    assert!(check_rounds(1 << 20, 1, 1).is_ok() && check_rounds(1 << 24, 192, 17).is_ok());
    for (leaves, systems, per_system) in [((1 << 20) + 1, 1, 1), (1 << 24, 192, 15)] {
        let error = check_rounds(leaves, systems, per_system).unwrap_err();
        assert!(matches!(error, PlacementError::TooManyRounds { .. }), "{error}");
    }
}

/// If this does not cost balance, every system owns one subtree and sends one sum.
#[test]
fn shares_are_subtrees_where_that_costs_nothing() {
    for (leaves, systems) in [(16, 12), (24, 16), (18, 4), (48, 32), (96, 64), (1536, 512), (1000, 8), (20, 12)] {
        let owned = share_leaves(LeafTree::new(leaves), 0..leaves, systems, leaves);
        assert!(sums(leaves, &owned).iter().all(|&sums| sums == 1), "{leaves} on {systems}: {owned:?}");
        let maximum = owned.iter().map(ExactSizeIterator::len).max().unwrap();
        assert_eq!(maximum, leaves.div_ceil(systems as u32) as usize);
    }
}

/// Alignment increases the share of the busiest system by at most one sixteenth, and reduces the number of sums.
#[test]
fn alignment_costs_a_bounded_balance() {
    let (mut aligned, mut even) = (0, 0);
    for leaves in (1..=200).chain([1000, 1536, 4096]) {
        let tree = LeafTree::new(leaves);
        for systems in 1..=leaves.min(48) as usize {
            let owned = share_leaves(tree, 0..leaves, systems, leaves);
            assert_eq!(owned.len(), systems);
            assert_eq!((owned[0].start, owned[systems - 1].end), (0, leaves));
            assert!(owned.windows(2).all(|two| two[0].end == two[1].start));
            let equal = leaves.div_ceil(systems as u32);
            let largest = owned.iter().map(|share| share.end - share.start).max().unwrap();
            assert!(largest <= equal + equal / ALIGNMENT_SLACK, "{leaves} on {systems}: {owned:?}");
            assert!(owned.iter().all(|share| !share.is_empty()), "{leaves} on {systems}: {owned:?}");
            let bound = |index: u64| (u64::from(leaves) * index).div_ceil(systems as u64) as u32;
            let equal: Vec<_> = (0..systems as u64).map(|index| bound(index)..bound(index + 1)).collect();
            aligned += sums(leaves, &owned).iter().sum::<usize>();
            even += sums(leaves, &equal).iter().sum::<usize>();
        }
    }
    assert!(aligned * 10 < even * 8, "{aligned} sums aligned, {even} in equal shares");
}

#[test]
fn activation_servers_are_shared_evenly_or_one_each() {
    let plan = crate::testing::TINY.plan(8, 1, crate::testing::CS2).unwrap();
    for systems in 1..=8u32 {
        for servers in 1..=10 {
            let (systems, swarmx) = ((0..systems).collect::<Vec<_>>(), (0..9).collect());
            let activation_servers = (3..3 + servers).collect();
            let members =
                PlacementMembers { systems, shards: 1, memoryx: vec![0], swarmx, fan_out: 4, activation_servers };
            let placement = Placement::new(&plan, &members).unwrap();
            let mut served = vec![0; servers as usize];
            placement.systems.iter().for_each(|system| served[system.activation as usize - 3] += 1);
            let (minimum, maximum) = (served.iter().min().unwrap(), served.iter().max().unwrap());
            assert!(maximum - minimum <= 1, "{served:?}");
        }
    }
}

#[test]
fn swarm_tree_has_every_system_once() {
    for systems in 1..40 {
        for fan_out in [2, 4] {
            let needed = swarm_nodes(systems, fan_out as u32);
            let ids: Vec<u32> = (0..needed as u32).collect();
            let (swarm, parents) = swarm_tree(systems, fan_out, &ids);
            assert_eq!(swarm.len(), needed);
            assert_eq!(swarm[0].systems, 0..systems);
            assert!(swarm[0].parent.is_none() && swarm[1..].iter().all(|node| node.parent.is_some()));
            for (system, &parent) in parents.iter().enumerate() {
                assert!(swarm[parent].children.contains(&SwarmChild::System(system)));
            }
            assert!(swarm.iter().all(|node| !node.children.is_empty() && node.children.len() <= fan_out));
        }
    }
}

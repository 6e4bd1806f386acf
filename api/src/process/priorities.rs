//! What a job's `priorityClassName` is worth where no cluster has classes: the appliance's own three levels.

use millrace_control::Priorities;

/// `p1` before `p2` before `p3`; a job that names none is of `p2`.
const CLASSES: [(&str, i32); 3] = [("p1", 300), ("p2", 200), ("p3", 100)];

/// All of them.
pub fn all() -> Priorities {
    let values = CLASSES.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Priorities { values, default: CLASSES[1].1 }
}

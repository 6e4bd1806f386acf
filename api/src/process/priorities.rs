//! Priority classes of a machine without a cluster: three fixed levels.

use millrace_control::PriorityValues;

/// Higher values come first; a job without a class has `p2`.
const PRIORITY_CLASSES: [(&str, i32); 3] = [("p1", 300), ("p2", 200), ("p3", 100)];

/// Returns all priority classes.
pub fn all() -> PriorityValues {
    let values = PRIORITY_CLASSES.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    PriorityValues { values, default: PRIORITY_CLASSES[1].1 }
}

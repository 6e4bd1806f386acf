//! Values that a client gives beside a params file: overrides of its keys, and fields of the spec that follow from
//! them.

use serde_json::{Map, Value, json};

use crate::error::{ApiError, FieldError, Result};

/// The override of the last step, which is that of all phases together.
const LAST_STEP_OVERRIDE: &str = "max_steps";

/// The overrides of where a job begins, which apply to its first phase.
const FIRST_PHASE_OVERRIDES: [&str; 2] = ["checkpoint_path", "load_checkpoint_states"];

/// The override of `model.name`, for params that do not name their model.
const MODEL_OVERRIDE: &str = "model";

/// The runconfig keys that may be overridden.
pub const OVERRIDE_FLAGS: [&str; 8] = [
    "max_steps",
    "eval_steps",
    "checkpoint_path",
    "load_checkpoint_states",
    "disable_strict_checkpoint_loading",
    "num_wgt_servers",
    "num_act_servers",
    "logging",
];

/// Sets the overridden flags in the runconfig of the params.
pub(super) fn apply_overrides(phases: &mut [Value], overrides: &Map<String, Value>) -> Result<()> {
    for (key, value) in overrides.iter().filter(|(_, value)| !value.is_null()) {
        if key == MODEL_OVERRIDE {
            phases.iter_mut().try_for_each(|params| name_model(params, value))?;
            continue;
        }
        if !OVERRIDE_FLAGS.contains(&key.as_str()) {
            let message = format!("expected one of {}, {MODEL_OVERRIDE}", OVERRIDE_FLAGS.join(", "));
            return Err(ApiError::invalid(vec![FieldError { field: format!("overrides.{key}"), message }]));
        }
        let count = match key.as_str() {
            // See `end_at_step`.
            LAST_STEP_OVERRIDE => 0,
            key if FIRST_PHASE_OVERRIDES.contains(&key) => 1,
            _ => phases.len(),
        };
        phases.iter_mut().take(count).for_each(|params| params["runconfig"][key] = value.clone());
    }
    Ok(())
}

/// Makes the overridden last step, if there is one, that of all phases together: phases that would begin later are
/// removed. A phase without a last step only evaluates, and follows the one before.
pub(super) fn end_at_step(phases: &mut Vec<Value>, overrides: &Map<String, Value>) {
    let Some(last) = overrides.get(LAST_STEP_OVERRIDE).filter(|last| !last.is_null()) else { return };
    let ends_before = |params: &Value| {
        params["runconfig"][LAST_STEP_OVERRIDE].as_u64().zip(last.as_u64()).is_none_or(|(end, last)| end < last)
    };
    phases.truncate(phases.iter().take_while(|params| ends_before(params)).count() + 1);
    if let Some(params) = phases.last_mut() {
        params["runconfig"][LAST_STEP_OVERRIDE] = last.clone();
    }
}

/// Names the family of the model in params that do not name it.
///
/// # Errors
/// The params name another family.
fn name_model(params: &mut Value, family: &Value) -> Result<()> {
    let given = params.pointer("/model/name").and_then(Value::as_str);
    match (given, family.as_str()) {
        (Some(given), Some(family)) if given.eq_ignore_ascii_case(family) => Ok(()),
        (Some(given), _) => {
            let message = format!("is {family}, but model.name of the params is {given}: leave the override out")
                .replace('"', "");
            Err(ApiError::invalid(vec![FieldError { field: "overrides.model".to_owned(), message }]))
        }
        (None, _) => {
            params["model"]["name"] = family.clone();
            Ok(())
        }
    }
}

/// Fills the fields of the spec that are not set from the corresponding keys of the first phase's runconfig.
pub(super) fn fill_from_runconfig(spec: &mut Map<String, Value>, phases: &[Value]) {
    let [params, later @ ..] = phases else { return };
    let run = &params["runconfig"];
    let mut fill = |field: &str, value: Option<Value>| {
        if let Some(value) = value.filter(|value| !value.is_null())
            && !spec.contains_key(field)
        {
            spec.insert(field.to_owned(), value);
        }
    };
    fill("numCsx", Some(run.get("num_csx").filter(|value| !value.is_null()).cloned().unwrap_or_else(|| json!(1))));
    // The mode of the spec would be that of all phases.
    fill("mode", run.get("mode").filter(|_| later.is_empty()).cloned());
    fill("priorityClassName", run.get("job_priority").cloned());
    fill(
        "deadlines",
        run.get("job_time_sec").filter(|value| value.is_u64()).map(|most| json!({"activeSeconds": most})),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_step_is_that_of_all_phases() {
        let phase = |max_steps: Value| json!({"runconfig": {"max_steps": max_steps}});
        let ends = |all: &[Value], last: u64| -> Vec<Value> {
            let mut phases = all.iter().cloned().map(phase).collect();
            end_at_step(&mut phases, json!({"max_steps": last}).as_object().unwrap());
            phases.iter().map(|params| params["runconfig"]["max_steps"].clone()).collect()
        };
        let two = [json!(20), json!(30)];
        assert_eq!(ends(&two, 8), [8]);
        assert_eq!(ends(&two, 20), [20]);
        assert_eq!(ends(&two, 25), [20, 25]);
        assert_eq!(ends(&two, 40), [20, 40]);
        assert_eq!(ends(&[Value::Null], 8), [8], "params may leave it to the command line");
        // The second phase only evaluates.
        assert_eq!(ends(&[json!(20), Value::Null, json!(30)], 30), [json!(20), Value::Null, json!(30)]);
    }
}

//! The PriorityClasses that jobs may name. A class decides the place in the queue, and which pods a job's pods may
//! evict.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// The classes that the chart creates; their pods evict no others.
const CHART_CLASSES: [&str; 3] = ["p1", "p2", "p3"];
/// Prefix of the cluster's own classes, whose pods evict all others.
const RESERVED_PREFIX: &str = "system-";

/// Names of the PriorityClasses that jobs may name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PriorityClasses(pub Vec<String>);

impl Default for PriorityClasses {
    fn default() -> Self {
        Self(CHART_CLASSES.map(str::to_owned).into())
    }
}

impl PriorityClasses {
    /// Returns whether a job may name `class`. Classes of the cluster itself are never allowed, even if they are
    /// listed.
    pub fn allows(&self, class: &str) -> bool {
        !class.starts_with(RESERVED_PREFIX) && self.0.iter().any(|allowed| allowed == class)
    }

    /// Returns why a job of this class is not admitted, as a sentence; `None` if it may be.
    pub fn rejection_message(&self, class: Option<&str>) -> Option<String> {
        let class = class.filter(|class| !self.allows(class))?;
        let allowed: Vec<&str> = self.0.iter().map(String::as_str).filter(|class| self.allows(class)).collect();
        let hint = match allowed.as_slice() {
            [] => "leave spec.priorityClassName out".to_owned(),
            some => format!("set spec.priorityClassName to one of {}, or leave it out", some.join(", ")),
        };
        Some(format!("the appliance does not allow jobs of the PriorityClass {class}: {hint}"))
    }
}

impl JsonSchema for PriorityClasses {
    fn schema_name() -> Cow<'static, str> {
        "PriorityClasses".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "array",
            "maxItems": 32,
            "items": {
                "type": "string",
                "minLength": 1,
                "maxLength": 253,
                "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
            },
            "x-kubernetes-list-type": "set",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priority_class_must_be_listed_and_not_of_system() {
        let classes = PriorityClasses::default();
        assert_eq!(classes.rejection_message(None), None);
        assert_eq!(classes.rejection_message(Some("p1")), None);
        let message = classes.rejection_message(Some("system-cluster-critical")).unwrap();
        assert_eq!(
            message,
            "the appliance does not allow jobs of the PriorityClass system-cluster-critical: set \
             spec.priorityClassName to one of p1, p2, p3, or leave it out"
        );
        let forged = PriorityClasses(vec!["system-node-critical".to_owned()]);
        assert!(
            forged
                .rejection_message(Some("system-node-critical"))
                .unwrap()
                .ends_with("leave spec.priorityClassName out")
        );
        assert_eq!(
            PriorityClasses(Vec::new()).rejection_message(None),
            None,
            "a job without a class is always admitted"
        );
    }
}

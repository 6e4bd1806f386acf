//! The optimizers that params can choose. Each is one file here, and one line of the table in this file.
//!
//! A file has the optimizer's settings as they stand in a job (`{"name": "sgd", "momentum": 0.9}`), the keys of the
//! section `optimizer` that they come from, and how they are resolved. What an optimizer computes, and the state that
//! it keeps, is one more file, in `emulator/src/optimizers`. This crate is shared with programs that compute nothing,
//! so it can't have both. `docs/dev/add-an-optimizer.md` describes each step.
//!
//! * A key that only other optimizers read is rejected.
//! * Names and settings are part of the format of checkpoints and of launch documents.

use serde::{Deserialize, Serialize};

use crate::document::OptimizerParams;
use crate::keywords::Keywords;
use crate::resolve::ResolveContext;
use crate::yaml::ParamsSection;

mod adadelta;
pub(crate) mod adafactor;
mod adagrad;
mod adam;
mod adamax;
mod lamb;
mod lion;
mod nadam;
mod radam;
mod rmsprop;
mod sgd;

/// An optimizer's settings, read from params.
trait FromParams: Sized {
    /// The keys of the section `optimizer` that only some optimizers read, and this one does.
    const KEYS: &'static [&'static str];

    /// Reads and checks these keys.
    fn from_params(check: &mut ResolveContext<'_>, params: &OptimizerParams) -> Self;
}

/// Registers optimizers: type, name in jobs, keyword of `optimizer_type`.
macro_rules! optimizers {
    ($($module:ident::$Name:ident, $name:literal, $keyword:literal;)*) => {
        $(pub use $module::$Name;)*

        /// The algorithm with its own settings.
        #[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "name")]
        pub enum OptimizerKind {
            $(
                #[doc = concat!("See [`", stringify!($Name), "`].")]
                #[serde(rename = $name)]
                $Name($Name),
            )*
        }

        impl OptimizerKind {
            /// Returns the name in jobs and checkpoints, such as `adamw`.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$Name(_) => $name,)*
                }
            }

            /// Returns whether the algorithm has a momentum, or a decay rate of its first moment, that a
            /// [`MomentumSchedule`](crate::MomentumSchedule) may change.
            pub fn has_momentum(&self) -> bool {
                let keys = match self {
                    $(Self::$Name(_) => $Name::KEYS,)*
                };
                keys.contains(&"momentum_schedule")
            }
        }

        $(impl From<$Name> for OptimizerKind {
            fn from(settings: $Name) -> Self {
                Self::$Name(settings)
            }
        })*

        /// An optimizer, without its settings.
        #[derive(Clone, Copy, PartialEq)]
        pub(crate) enum OptimizerName {
            $($Name,)*
        }

        impl OptimizerName {
            const ALL: &'static [Self] = &[$(Self::$Name,)*];

            const fn keys(self) -> &'static [&'static str] {
                match self {
                    $(Self::$Name => $Name::KEYS,)*
                }
            }

            fn settings(self, check: &mut ResolveContext<'_>, params: &OptimizerParams) -> OptimizerKind {
                match self {
                    $(Self::$Name => $Name::from_params(check, params).into(),)*
                }
            }
        }

        #[rustfmt::skip]
        pub(crate) static OPTIMIZERS: Keywords<OptimizerName> = Keywords {
            values: &[$(($keyword, OptimizerName::$Name),)*],
            unsupported: &[
                "ASGD", "Rprop",
            ],
        };
    };
}

optimizers! {
    adam::AdamW, "adamw", "AdamW";
    adam::Adam, "adam", "Adam";
    sgd::Sgd, "sgd", "SGD";
    lion::Lion, "lion", "Lion";
    rmsprop::RmsProp, "rmsprop", "RMSprop";
    adagrad::Adagrad, "adagrad", "Adagrad";
    nadam::NAdam, "nadam", "NAdam";
    radam::RAdam, "radam", "RAdam";
    adamax::Adamax, "adamax", "Adamax";
    adadelta::Adadelta, "adadelta", "Adadelta";
    lamb::Lamb, "lamb", "Lamb";
    adafactor::Adafactor, "adafactor", "Adafactor";
}

/// Resolves `optimizer_type` and the keys of the optimizer that it names.
pub(crate) fn resolve(check: &mut ResolveContext<'_>, params: &OptimizerParams) -> OptimizerKind {
    // Older files of `fc_mnist` have keys of Adam only, which is what they mean.
    let optimizer_name = params.optimizer_type.as_deref().or(params.beta1.and(Some("Adam")));
    if optimizer_name.is_none() {
        let names: Vec<&str> = OPTIMIZERS.values.iter().map(|(keyword, _)| *keyword).collect();
        let (last, others) = names.split_last().map_or(("", &[][..]), |(last, others)| (*last, others));
        check.report_missing("optimizer.optimizer_type", format!("use {} or {last}", others.join(", ")));
    }
    let name = check.keyword("optimizer.optimizer_type", optimizer_name, OptimizerName::AdamW, &OPTIMIZERS);
    let is_foreign = |key: &&str| {
        let belongs_to = |optimizer: &OptimizerName| optimizer.keys().contains(key);
        OptimizerName::ALL.iter().any(belongs_to) && !belongs_to(&name)
    };
    let has_effect = |key: &&str| !is_switched_off(params, key);
    for key in params.given_keys().into_iter().filter(is_foreign).filter(has_effect) {
        let message = format!("has no meaning for {}", optimizer_name.unwrap_or("AdamW"));
        check.report_invalid(&format!("optimizer.{key}"), message, "leave it out");
    }
    name.settings(check, params)
}

/// Returns whether a key is a switch that is off, which files write for any optimizer.
fn is_switched_off(params: &OptimizerParams, key: &str) -> bool {
    let value = match key {
        "nesterov" => params.nesterov,
        "use_nesterov" => params.use_nesterov,
        "amsgrad" => params.amsgrad,
        _ => None,
    };
    value == Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_optimizer_is_also_listed_as_unsupported() {
        for (keyword, _) in OPTIMIZERS.values {
            assert!(!OPTIMIZERS.is_unsupported(keyword), "remove {keyword} from `unsupported`");
        }
    }

    #[test]
    fn keys_of_optimizers_are_keys_of_params() {
        for key in OptimizerName::ALL.iter().flat_map(|optimizer| optimizer.keys()) {
            let is_known = OptimizerParams::REFERENCE.keys.iter().any(|reference| reference.name == *key);
            assert!(is_known, "add {key} to crds/params/src/document/optimizer.rs");
        }
    }

    /// The form of each optimizer in jobs: checkpoints and launch documents of every release contain it.
    #[test]
    fn jobs_keep_their_form() {
        let (betas, eps, correct_bias) = ([0.5, 0.75], 0.25, true);
        let cases: Vec<(OptimizerKind, &str)> = vec![
            (
                AdamW { betas, eps, correct_bias, epsilon_hat: false, amsgrad: false }.into(),
                r#"{"name":"adamw","betas":[0.5,0.75],"eps":0.25,"correct_bias":true}"#,
            ),
            (
                Adam { betas, eps, correct_bias, epsilon_hat: false, amsgrad: false }.into(),
                r#"{"name":"adam","betas":[0.5,0.75],"eps":0.25,"correct_bias":true}"#,
            ),
            (
                Adam { betas, eps, correct_bias, epsilon_hat: true, amsgrad: true }.into(),
                r#"{"name":"adam","betas":[0.5,0.75],"eps":0.25,"correct_bias":true,"epsilon_hat":true,"amsgrad":true}"#,
            ),
            (Sgd { momentum: 0.5, dampening: 0.0, nesterov: false }.into(), r#"{"name":"sgd","momentum":0.5}"#),
            (
                Sgd { momentum: 0.5, dampening: 0.25, nesterov: true }.into(),
                r#"{"name":"sgd","momentum":0.5,"dampening":0.25,"nesterov":true}"#,
            ),
            (Lion { betas }.into(), r#"{"name":"lion","betas":[0.5,0.75]}"#),
            (
                RmsProp { alpha: 0.5, eps, momentum: 0.5, centered: false }.into(),
                r#"{"name":"rmsprop","alpha":0.5,"eps":0.25,"momentum":0.5,"centered":false}"#,
            ),
            (
                Adagrad { lr_decay: 0.5, initial_accumulator_value: 0.5, eps }.into(),
                r#"{"name":"adagrad","lr_decay":0.5,"initial_accumulator_value":0.5,"eps":0.25}"#,
            ),
            (
                NAdam { betas, eps, momentum_decay: 0.5, decoupled_weight_decay: false }.into(),
                r#"{"name":"nadam","betas":[0.5,0.75],"eps":0.25,"momentum_decay":0.5}"#,
            ),
            (
                RAdam { betas, eps, decoupled_weight_decay: false }.into(),
                r#"{"name":"radam","betas":[0.5,0.75],"eps":0.25}"#,
            ),
            (
                RAdam { betas, eps, decoupled_weight_decay: true }.into(),
                r#"{"name":"radam","betas":[0.5,0.75],"eps":0.25,"decoupled_weight_decay":true}"#,
            ),
            (Adamax { betas, eps }.into(), r#"{"name":"adamax","betas":[0.5,0.75],"eps":0.25}"#),
            (Adadelta { rho: 0.5, eps }.into(), r#"{"name":"adadelta","rho":0.5,"eps":0.25}"#),
            (
                Lamb { betas, eps, correct_bias, adam: false }.into(),
                r#"{"name":"lamb","betas":[0.5,0.75],"eps":0.25,"correct_bias":true,"adam":false}"#,
            ),
            (
                Adafactor {
                    eps: betas,
                    clip_threshold: 1.5,
                    decay_rate: -0.75,
                    beta1: Some(0.5),
                    scale_parameter: true,
                }
                .into(),
                r#"{"name":"adafactor","eps":[0.5,0.75],"clip_threshold":1.5,"decay_rate":-0.75,"beta1":0.5,"scale_parameter":true}"#,
            ),
        ];
        let names: std::collections::BTreeSet<_> = cases.iter().map(|(kind, _)| kind.name().to_string()).collect();
        assert_eq!(names.len(), OptimizerName::ALL.len(), "a line for each optimizer");
        for (kind, document) in cases {
            assert_eq!(serde_json::to_string(&kind).unwrap(), document);
            assert_eq!(serde_json::from_str::<OptimizerKind>(document).unwrap(), kind);
            assert!(document.contains(&format!("\"{}\"", kind.name())));
        }
    }
}

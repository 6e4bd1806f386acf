//! `section!`: one table per section of a document. It generates the serde type, the JSON schema, the strict reader and
//! the list of keys without effect, so that they always agree.

/// Defines a section in which every key is optional.
///
/// * The struct's fields are keys that are used (or rejected with a reason when they are resolved).
/// * `without_effect` has keys that only tune the real machine: typed, accepted, and reported once to the user.
/// * `not_yet` has keys of the public model zoo that are rejected by name, each with a remedy.
/// * `elsewhere` has keys of the same document that other readers use: ignored here.
/// * `beside` is a field of ours that is not a key.
///
/// The reader is strict. serde is not, and ignores unknown keys, because objects from an API server may be newer than
/// this program.
macro_rules! section {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $( $(#[$fmeta:meta])* $field:ident : $ty:ty, )*
        }
        without_effect { $( $(#[$wmeta:meta])* $wfield:ident : $wty:ty, )* }
        not_yet { $( $nkey:literal => $remedy:expr, )* }
        $( elsewhere { $( $ekey:literal, )* } )?
        $( beside { $(#[$bmeta:meta])* $bfield:ident : $bty:ty, } )?
    ) => {
        #[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        $(#[$meta])*
        pub struct $name {
            $(
                $(#[$fmeta])*
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub $field: Option<$ty>,
            )*
            $(
                $(#[$wmeta])*
                ///
                /// Without effect here: it only tunes the real machine.
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub $wfield: Option<$wty>,
            )*
            $(
                $(#[$bmeta])*
                #[serde(skip)]
                pub(crate) $bfield: $bty,
            )?
        }

        impl $name {
            /// Every key of this section, in snake case.
            pub const KEYS: &'static [&'static str] = &[$( stringify!($field), )* $( stringify!($wfield), )*];

            const UNSUPPORTED: &'static [(&'static str, &'static str)] = &[$( ($nkey, $remedy), )*];
        }

        impl $crate::yaml::ParamsSection for $name {
            #[allow(unused_variables, reason = "a section may have no such keys")]
            fn ignored_keys(&self, at: &str, keys: &mut Vec<String>) {
                $( if self.$wfield.is_some() { keys.push(format!("{at}.{}", stringify!($wfield))); } )*
            }
        }

        impl $crate::yaml::FromNode for $name {
            fn from_node(node: &$crate::yaml::YamlNode, reader: &mut $crate::yaml::TreeReader) -> Option<Self> {
                let mut section = Self::default();
                for entry in reader.entries(node)? {
                    match reader.key(entry).as_ref() {
                        $( stringify!($field) => reader.field(entry, &mut section.$field), )*
                        $( stringify!($wfield) => reader.field(entry, &mut section.$wfield), )*
                        $( $( $ekey => {} )* )?
                        _ => reader.unknown(entry, Self::KEYS, Self::UNSUPPORTED),
                    }
                }
                Some(section)
            }
        }
    };
}

pub(crate) use section;

/// Operations that every section has.
pub(crate) trait ParamsSection {
    /// Adds `at.key` for every key that was given and has no effect.
    fn ignored_keys(&self, at: &str, keys: &mut Vec<String>);
}

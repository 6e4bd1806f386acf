//! `section!`: one table per section of a document, from which its serde type, its JSON schema, its strict reader and
//! its list of keys without effect all come, so that they cannot drift apart.

/// Defines a section whose every key is optional in the text.
///
/// * the struct's fields are keys that are honoured (or refused with a reason when resolved);
/// * `without_effect` are keys that only tune the real machine: typed, accepted, and named once to the user;
/// * `not_yet` are keys of the public model zoo refused by name, each with what to do instead;
/// * `elsewhere` are keys of the same document that others read: let pass here;
/// * `beside` is a field of ours that is no key.
///
/// The reader is strict; serde is not, and leaves out what it does not know: objects that come from an API server may be
/// newer than this program.
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

            const NOT_YET: &'static [(&'static str, &'static str)] = &[$( ($nkey, $remedy), )*];
        }

        impl $crate::yaml::Section for $name {
            #[allow(unused_variables, reason = "a section may have no such keys")]
            fn keys_without_effect(&self, at: &str, keys: &mut Vec<String>) {
                $( if self.$wfield.is_some() { keys.push(format!("{at}.{}", stringify!($wfield))); } )*
            }
        }

        impl $crate::yaml::FromNode for $name {
            fn from_node(node: &$crate::yaml::Node, reader: &mut $crate::yaml::Reader) -> Option<Self> {
                let mut section = Self::default();
                for entry in reader.entries(node)? {
                    match reader.key(entry).as_ref() {
                        $( stringify!($field) => reader.field(entry, &mut section.$field), )*
                        $( stringify!($wfield) => reader.field(entry, &mut section.$wfield), )*
                        $( $( $ekey => {} )* )?
                        _ => reader.unknown(entry, Self::KEYS, Self::NOT_YET),
                    }
                }
                Some(section)
            }
        }
    };
}

pub(crate) use section;

/// What every section can tell of itself.
pub(crate) trait Section {
    /// Adds `at.key` for every key that was given and has no effect.
    fn keys_without_effect(&self, at: &str, keys: &mut Vec<String>);
}

//! `section!`: one table per section of a document.
//!
//! The table generates the serde type, the JSON schema, the strict reader, the list of ignored keys, and the section's
//! [`SectionReference`](crate::keys::SectionReference), so that they always agree.

/// Defines a section in which every key is optional for the reader.
///
/// ```text
/// section! {
///     /// A GPT-2 or GPT-3 model.
///     pub struct ModelParams {
///         /// Number of decoder blocks.
///         num_hidden_layers: u64 = required(),
///         /// Activation function of the feed-forward network.
///         nonlinearity: String = default("gelu").one_of(&NONLINEARITIES),
///     }
///     ignored { … }
///     unsupported { … }
/// }
/// ```
///
/// * The struct's fields are keys that are used (or rejected with a reason when they are resolved). Each has a
///   description and [`KeyFacts`](crate::keys::facts::KeyFacts): without one of them the table does not compile.
/// * `ignored` has keys that only configure the real machine: typed, accepted, and reported once to the user.
/// * `unsupported` has keys of the public model zoo that are rejected by name, each with a remedy.
/// * A key that is a keyword of Rust is written as an identifier, `r#type`.
/// * `read_elsewhere` has keys of the same document that other readers use: ignored here.
/// * `internal` is a field that is not a key.
///
/// The reader is strict. serde is not, and ignores unknown keys, because objects from an API server may be newer than
/// this program.
macro_rules! section {
    (
        $( #[doc = $doc:literal] )+
        $( #[serde($($serde:tt)*)] )?
        pub struct $name:ident {
            $( $( #[doc = $fdoc:literal] )+ $field:ident : $ty:ty = $facts:expr, )*
        }
        ignored { $( $( #[doc = $idoc:literal] )+ $ifield:ident : $ity:ty, )* }
        unsupported { $( $ukey:literal => $remedy:expr, )* }
        $( read_elsewhere { $( $ekey:literal, )* } )?
        $( internal { $(#[$bmeta:meta])* $bfield:ident : $bty:ty, } )?
    ) => {
        #[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[cfg_attr(feature = "schema", schemars(transform = $crate::yaml::describe_keys($name::REFERENCE)))]
        $( #[doc = $doc] )+
        $( #[serde($($serde)*)] )?
        pub struct $name {
            $(
                $( #[doc = $fdoc] )+
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub $field: Option<$ty>,
            )*
            $(
                $( #[doc = $idoc] )+
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub $ifield: Option<$ity>,
            )*
            $(
                $(#[$bmeta])*
                #[serde(skip)]
                pub(crate) $bfield: $bty,
            )?
        }

        impl $name {
            /// The keys of this section with their types, defaults and choices.
            pub const REFERENCE: &'static $crate::keys::SectionReference = &$crate::keys::SectionReference {
                type_name: stringify!($name),
                description: concat!($($doc),+),
                keys: &[
                    $( $crate::keys::KeyReference::new(
                        stringify!($field), concat!($($fdoc),+),
                        (<$ty as $crate::yaml::FromNode>::TYPE, <$ty as $crate::yaml::FromNode>::SECTION), $facts,
                    ), )*
                    $( $crate::keys::KeyReference::new(
                        stringify!($ifield), concat!($($idoc),+),
                        (<$ity as $crate::yaml::FromNode>::TYPE, <$ity as $crate::yaml::FromNode>::SECTION),
                        $crate::keys::facts::no_effect(),
                    ), )*
                ],
                unsupported: &[$( ($ukey, $remedy), )*],
            };
        }

        impl $crate::yaml::ParamsSection for $name {
            #[allow(unused_variables, reason = "a section can't have such keys")]
            fn ignored_keys(&self, path: &str, keys: &mut Vec<String>) {
                $( if self.$ifield.is_some() { keys.push(format!("{path}.{}", stringify!($ifield))); } )*
            }

            fn given_keys(&self) -> Vec<&'static str> {
                let all = [$( ($crate::keys::key_of_field(stringify!($field)), self.$field.is_some()), )*];
                all.into_iter().filter_map(|(key, is_given)| is_given.then_some(key)).collect()
            }
        }

        impl $crate::yaml::FromNode for $name {
            const TYPE: &'static str = "a mapping of keys to values";
            const SECTION: Option<&'static $crate::keys::SectionReference> = Some($name::REFERENCE);

            fn from_node(node: &$crate::yaml::YamlNode, reader: &mut $crate::yaml::TreeReader) -> Option<Self> {
                let mut section = Self::default();
                for entry in reader.entries(node)? {
                    let key = reader.key(entry);
                    match $crate::keys::field_of_key(key.as_ref()) {
                        $( stringify!($field) => reader.field(entry, &mut section.$field), )*
                        $( stringify!($ifield) => reader.field(entry, &mut section.$ifield), )*
                        $( $( $ekey => {} )* )?
                        _ => reader.unknown(entry, Self::REFERENCE),
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
    fn ignored_keys(&self, path: &str, keys: &mut Vec<String>);

    /// Returns the keys that were given and are used, in the order of the section's table.
    fn given_keys(&self) -> Vec<&'static str>;
}

//! Identifies the machine on which processes can share memory.

use std::fmt::{self, Display, Formatter};

/// The booted kernel and the namespace of process numbers. Two processes with the same value can open each other's
/// files by process number if their users may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineId(String);

/// Maximum bytes of the text of a [`MachineId`].
const MAX_MACHINE_ID_BYTES: usize = 128;

impl MachineId {
    /// Reads the identity of this process's machine; `None` if the system does not provide it.
    pub fn read() -> Option<Self> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let namespace = std::fs::read_link("/proc/self/ns/pid").ok()?;
        Self::parse(&format!("{} {}", boot.trim(), namespace.to_str()?))
    }

    /// Reads the text that a peer has sent; `None` if it is none that [`Display`] wrote.
    pub fn parse(text: &str) -> Option<Self> {
        let is_valid = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
        let is_bounded = (1..=MAX_MACHINE_ID_BYTES).contains(&text.len());
        (is_bounded && text.bytes().all(is_valid)).then(|| Self(text.to_owned()))
    }
}

impl Display for MachineId {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

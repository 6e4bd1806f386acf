//! Flush-to-zero: denormal results and operands are treated as zero.
//!
//! Arithmetic on denormals is up to two hundred times slower than on normal numbers, and gradients contain them. Every
//! compute thread therefore sets flush-to-zero first. The setting is per thread, and part of the numerics profile,
//! because it changes bits.
//!
//! The compiler does not model this register; it may evaluate a constant expression with denormals. No kernel has such
//! an expression, and a test checks the effect. Targets without this control do not flush, see [`is_enabled`].

use std::marker::PhantomData;

#[cfg(target_arch = "x86_64")]
mod control {
    use std::arch::asm;

    /// MXCSR: flush-to-zero (bit 15) and denormals-are-zero (bit 6).
    pub const FLUSH: u64 = 0x8040;

    pub fn read() -> u64 {
        let mut mxcsr = 0u32;
        // SAFETY: stores the control register into a local of its size.
        unsafe { asm!("stmxcsr [{}]", in(reg) &mut mxcsr, options(nostack)) };
        u64::from(mxcsr)
    }

    pub fn write(value: u64) {
        let mxcsr = value as u32;
        // SAFETY: the value is one that was read, with at most the two flush bits changed, so no reserved bit is set
        // and no exception is unmasked.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &mxcsr, options(nostack)) };
    }
}

#[cfg(target_arch = "aarch64")]
mod control {
    use std::arch::asm;

    /// FPCR: flush-to-zero (bit 24), for operands and results.
    pub const FLUSH: u64 = 1 << 24;

    pub fn read() -> u64 {
        let fpcr: u64;
        // SAFETY: reads a control register that is accessible in user mode.
        unsafe { asm!("mrs {}, fpcr", out(reg) fpcr, options(nomem, nostack)) };
        fpcr
    }

    pub fn write(value: u64) {
        // SAFETY: the value is one that was read, with at most the flush bit changed.
        unsafe { asm!("msr fpcr, {}", in(reg) value, options(nostack)) };
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod control {
    pub const FLUSH: u64 = 0;

    pub fn read() -> u64 {
        0
    }

    pub fn write(_: u64) {}
}

/// Sets flush-to-zero for the remaining lifetime of this thread.
pub fn enable() {
    control::write(control::read() | control::FLUSH);
}

/// Returns whether this thread flushes denormals.
pub fn is_enabled() -> bool {
    control::FLUSH != 0 && control::read() & control::FLUSH == control::FLUSH
}

/// Sets flush-to-zero until the guard is dropped.
#[must_use = "dropping the guard restores the setting"]
pub fn scoped() -> FtzGuard {
    let before = control::read();
    if before & control::FLUSH != control::FLUSH {
        control::write(before | control::FLUSH);
    }
    FtzGuard { before, thread_bound: PhantomData }
}

/// Restores the thread's setting when dropped.
#[derive(Debug)]
pub struct FtzGuard {
    before: u64,
    /// The register belongs to a thread: the guard must not move to another.
    thread_bound: PhantomData<*const ()>,
}

impl Drop for FtzGuard {
    fn drop(&mut self) {
        if self.before & control::FLUSH != control::FLUSH {
            control::write(control::read() & !control::FLUSH | self.before & control::FLUSH);
        }
    }
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use std::hint::black_box;

    use super::*;

    fn denormal_product() -> f32 {
        black_box(1e-30f32) * black_box(1e-10f32)
    }

    #[test]
    fn denormals_are_flushed_only_under_guard() {
        assert!(!is_enabled());
        assert!(denormal_product() > 0.0);
        {
            let _outer = scoped();
            let _inner = scoped();
            assert!(is_enabled());
            assert_eq!(denormal_product(), 0.0);
            // Denormal operands too.
            assert_eq!(black_box(f32::from_bits(1)) * black_box(1e30), 0.0);
        }
        assert!(!is_enabled());
        assert!(denormal_product() > 0.0);
    }
}

//! How this processor keeps its vector registers, and who may use which protection key.

use core::arch::asm;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicU8, Ordering::Relaxed};

/// Bytes that an entry stub takes for the vector registers.
pub(crate) static VECTOR_STATE_BYTES: AtomicU64 = AtomicU64::new(512);
/// Which of them it keeps, for xsave.
pub(crate) static VECTOR_STATE_MASK: AtomicU32 = AtomicU32::new(0);
/// Whether the processor has xsave; else they are kept by fxsave.
pub(crate) static HAS_XSAVE: AtomicU8 = AtomicU8::new(0);

/// What the processor says of itself in a leaf. The function is unsafe before Rust 1.94.
#[allow(unused_unsafe)]
fn cpuid(leaf: u32, subleaf: u32) -> core::arch::x86_64::CpuidResult {
    // SAFETY: every processor of this architecture has the instruction, and it touches no memory.
    unsafe { core::arch::x86_64::__cpuid_count(leaf, subleaf) }
}

/// Finds out how this processor keeps its vector registers. Once, at start-up.
pub fn init() {
    use core::arch::x86_64::_xgetbv;
    let osxsave = cpuid(1, 0).ecx & (1 << 27) != 0;
    if !osxsave {
        return;
    }
    // x87, SSE, AVX and AVX-512 state: all that compiled code here can touch.
    // Not AMX's tiles (8 KiB): we never use them, and the stack may be small.
    const OURS: u64 = 0b1110_0111;
    #[target_feature(enable = "xsave")]
    unsafe fn xcr0() -> u64 {
        // SAFETY: OSXSAVE is set, so xgetbv(0) is allowed.
        unsafe { _xgetbv(0) }
    }
    // SAFETY: as above.
    let mask = unsafe { xcr0() } & OURS;
    let mut bytes = 576u64;
    for component in 2..8u32 {
        if mask & (1 << component) != 0 {
            let leaf = cpuid(0xd, component);
            bytes = bytes.max(u64::from(leaf.eax) + u64::from(leaf.ebx));
        }
    }
    VECTOR_STATE_BYTES.store((bytes + 63) & !63, Relaxed);
    VECTOR_STATE_MASK.store(mask as u32, Relaxed);
    HAS_XSAVE.store(1, Relaxed);
}

/// While this lives, this thread may use memory of every protection key (pkeys(7)).
pub struct AllKeys {
    /// What it may do otherwise; 0: anything, or the processor has no keys.
    rights: u32,
}

impl AllKeys {
    /// From now on.
    pub fn take() -> Self {
        const OSPKE: u32 = 1 << 4;
        let leaf = cpuid(7, 0);
        if cpuid(0, 0).eax < 7 || leaf.ecx & OSPKE == 0 {
            return Self { rights: 0 };
        }
        let rights: u32;
        // SAFETY: with OSPKE the instruction (rdpkru) is there, and reads a register.
        unsafe {
            asm!(".byte 0x0f, 0x01, 0xee", in("ecx") 0, out("eax") rights, out("edx") _,
                options(nomem, nostack, preserves_flags));
        }
        let keys = Self { rights };
        if rights != 0 {
            Self::allow(0);
        }
        keys
    }

    fn allow(rights: u32) {
        // SAFETY: with OSPKE the instruction (wrpkru) is there. What memory may be used
        // changes; not `nomem`, so that no access is moved across.
        unsafe {
            asm!(".byte 0x0f, 0x01, 0xef", in("ecx") 0, in("eax") rights, in("edx") 0,
                options(nostack, preserves_flags));
        }
    }
}

impl Drop for AllKeys {
    fn drop(&mut self) {
        if self.rights != 0 {
            Self::allow(self.rights);
        }
    }
}

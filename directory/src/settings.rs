//! What stands in [`Header::settings`](crate::layout::Header::settings): the settings that
//! are in force, in one word, so that whoever looks at a process knows what to expect of it.

use crate::layout::{
    SETTING_FORKED, SETTING_GAVE_UP, SETTING_HCA_OFF, SETTING_INTERCEPT_SHIFT, SETTING_PIN_SHIFT,
};
use core::fmt;

/// Names of executables, with commas between them, that start or wrap the job's processes: nothing is registered in
/// them unless REGALL_ONLY names them.
pub const LAUNCHERS: &[u8] = b"mpirun,mpiexec,mpirun.openmpi,mpiexec.openmpi,mpirun.mpich,mpiexec.mpich,\
mpiexec.hydra,hydra_pmi_proxy,hydra_bstrap_proxy,hydra_nameserver,orterun,orted,ompi_info,prte,prted,prterun,\
prun,oshrun,srun,sbatch,salloc,slurmstepd,slurmd,sattach,qsub,pbs_mom,jsrun,flux,aprun,ssh,sshd,rsh,\
sh,bash,dash,ash,busybox,zsh,ksh,mksh,csh,tcsh,fish,env,nice,nohup,timeout,numactl,taskset,setsid,stdbuf,\
time,sudo,su,xargs,strace,ltrace,gdb,perf,regall";

/// Launchers' names for the rank, those of MPI libraries before Slurm's, which are also in
/// the environment of what `srun` and `sbatch` start otherwise, ...
pub const RANKS: [&[u8]; 5] = [
    b"OMPI_COMM_WORLD_RANK",
    b"PMIX_RANK",
    b"PMI_RANK",
    b"PALS_RANKID",
    b"SLURM_PROCID",
];
/// ... and for how many there are. SLURM_NTASKS is the whole job's, even for the batch
/// script alone.
pub const SIZES: [&[u8]; 3] = [
    b"OMPI_COMM_WORLD_SIZE",
    b"PMI_SIZE",
    b"SLURM_STEP_NUM_TASKS",
];

/// Batch systems' names for the number of a job.
pub const JOBS: [&[u8]; 5] = [
    b"SLURM_JOB_ID",
    b"PBS_JOBID",
    b"LSB_JOBID",
    b"FLUX_JOB_ID",
    b"JOB_ID",
];

/// A setting that has one of a few values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setting {
    /// Its name: that of the variable, without `REGALL_`, in small letters.
    pub name: &'static str,
    /// Place of its lowest bit.
    shift: u32,
    /// The setting's values by their numbers.
    words: &'static [&'static str],
}

impl Setting {
    /// REGALL_PIN.
    pub const PIN: Self = Self::new(
        "pin",
        SETTING_PIN_SHIFT,
        &["off", "onfault", "populate", "auto"],
    );
    /// REGALL_INTERCEPT, as it is in force.
    pub const INTERCEPT: Self = Self::new(
        "intercept",
        SETTING_INTERCEPT_SHIFT,
        &["symbols", "patch", "strict"],
    );
    /// REGALL_HCA_MODE.
    pub const HCA_MODE: Self = Self::new("hca_mode", 7, &["pinned", "odp"]);
    /// REGALL_SCOPE.
    pub const SCOPE: Self = Self::new("scope", 8, &["all", "data"]);
    /// REGALL_KEYS.
    pub const KEYS: Self = Self::new("keys", 9, &["mapping", "exact"]);
    /// REGALL_ACCESS.
    pub const ACCESS: Self = Self::new(
        "access",
        10,
        &["local", "remote-read", "remote-write", "remote-atomic"],
    );
    /// REGALL_ON_LIMIT.
    pub const ON_LIMIT: Self = Self::new("on_limit", 12, &["skip", "fail"]);
    /// REGALL_FORK.
    pub const FORK: Self = Self::new("fork", 13, &["inherit", "all"]);
    /// REGALL_SHARE, as it is in force.
    pub const SHARE: Self = Self::new("share", 32, &["off", "heap", "always"]);
    /// REGALL_HUGE, as it is in force: `off` also where the kernel gives huge pages to all
    /// or to nobody.
    pub const HUGE: Self = Self::new("huge", 15, &["off", "advise"]);

    const fn new(name: &'static str, shift: u32, words: &'static [&'static str]) -> Self {
        Self { name, shift, words }
    }

    /// The bits that its value has: as many as its last number needs.
    const fn mask(&self) -> u64 {
        (self.words.len() as u64).next_power_of_two() - 1
    }

    /// The bits of value number `n`.
    pub const fn bits(&self, n: u64) -> u64 {
        (n & self.mask()) << self.shift
    }

    /// What `settings` has for it; a question mark where that is nothing.
    pub fn word(&self, settings: u64) -> &'static str {
        let n = settings >> self.shift & self.mask();
        self.words.get(n as usize).copied().unwrap_or("?")
    }
}

/// The table of the bridge's mechanisms, in the order in which `auto` asks them: hands its rows to
/// the macro `$then`. A row has the mechanism's name as a value of the bridge's `Kind`, its number
/// there, its name in REGALL_COPY, the file of `bridge/src/mechanism/` and the type there that
/// implements it, and its counters: transfers, and their bytes.
#[macro_export]
macro_rules! each_mechanism {
    ($then:ident) => {
        $then! {
            /// The peer's memory, mapped here, where it can be mapped.
            Map = 0 => "map", map::Map, CopyMap, CopyMapBytes;
            /// The peer's memory, mapped here by the XPMEM module.
            Xpmem = 1 => "xpmem", xpmem::Xpmem, CopyXpmem, CopyXpmemBytes;
            /// Cross Memory Attach: process_vm_readv(2), and /proc/PID/mem for a few bytes.
            Cma = 2 => "cma", cma::Cma, CopyCma, CopyCmaBytes;
            /// The KNEM module; for cookies alone.
            Knem = 3 => "knem", knem::Knem, CopyKnem, CopyKnemBytes;
            /// A thread of the owner's.
            Helper = 4 => "helper", helper::Helper, CopyHelper, CopyHelperBytes;
        }
    };
}

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident = $n:literal => $word:literal, $file:ident::$type:ident,
        $transfers:ident, $bytes:ident;)*) => {
        /// The names of the bridge's mechanisms, in the order of `auto`; [`copy_bits`] takes their
        /// numbers.
        pub const MECHANISMS: &[&str] = &[$($word),*];

        /// What REGALL_COPY may be.
        pub const COPIES: &str = concat!("auto, off, or a list of these with commas:" $(, " ", $word)*);
    };
}

each_mechanism! { names }

/// REGALL_COPY: four bits for each mechanism of its order, 0 behind the last one, ...
const COPY_SHIFT: u32 = 36;
const COPY_BITS: u32 = 4;
/// ... and one if the size decides, too.
const COPY_AUTO: u64 = 1 << 35;
/// All bits that REGALL_COPY may have.
const COPY_MASK: u64 = {
    let bits = COPY_BITS * MECHANISMS.len() as u32;
    assert!(COPY_SHIFT + bits <= u64::BITS, "no room for a mechanism");
    ((1 << bits) - 1) << COPY_SHIFT | COPY_AUTO
};

// Each mechanism's number, and 0, fits its bits.
const _: () = assert!(MECHANISMS.len() < 1 << COPY_BITS);
// No two settings have a bit of their own in common.
const _: () = {
    let mut taken = SETTING_HCA_OFF | SETTING_GAVE_UP | SETTING_FORKED;
    let mut n = 0;
    while n < ALL.len() {
        let its = match ALL[n] {
            Any::One(one) => one.mask() << one.shift,
            Any::Copy => COPY_MASK,
            Any::Hca => 0,
        };
        assert!(taken & its == 0, "two settings share a bit");
        taken |= its;
        n += 1;
    }
};

/// The bits of an order of mechanisms, by their numbers, the one to be tried first first.
pub fn copy_bits(order: impl Iterator<Item = usize>, auto: bool) -> u64 {
    let places = order.take(MECHANISMS.len()).zip(0u32..);
    let bits = places.fold(0, |bits, (kind, place)| {
        bits | (kind as u64 + 1) << (COPY_SHIFT + COPY_BITS * place)
    });
    bits | if auto { COPY_AUTO } else { 0 }
}

/// REGALL_COPY, as it is written there.
#[derive(Clone, Copy)]
struct Copy(u64);

impl fmt::Display for Copy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 & COPY_AUTO != 0 {
            return f.write_str("auto");
        }
        let number =
            |place: u32| self.0 >> (COPY_SHIFT + COPY_BITS * place) & ((1 << COPY_BITS) - 1);
        let places = (0..MECHANISMS.len() as u32).map(number);
        let mut comma = "";
        for n in places.take_while(|n| *n != 0) {
            let word = MECHANISMS.get(n as usize - 1).copied().unwrap_or("?");
            write!(f, "{comma}{word}")?;
            comma = ",";
        }
        if comma.is_empty() {
            f.write_str("off")?;
        }
        Ok(())
    }
}

/// A setting, however it is kept.
#[derive(Clone, Copy)]
enum Any {
    One(Setting),
    Hca,
    Copy,
}

/// All of them, in the order in which the manual has the variables.
const ALL: [Any; 12] = [
    Any::One(Setting::PIN),
    Any::One(Setting::INTERCEPT),
    Any::One(Setting::ON_LIMIT),
    Any::One(Setting::FORK),
    Any::Hca,
    Any::One(Setting::HCA_MODE),
    Any::One(Setting::SCOPE),
    Any::One(Setting::KEYS),
    Any::One(Setting::ACCESS),
    Any::Copy,
    Any::One(Setting::SHARE),
    Any::One(Setting::HUGE),
];

/// Calls `tell` with the name and the value of each setting. `device` is the one that
/// REGALL_HCA names; empty: it names none.
pub fn each<E>(
    settings: u64,
    device: &str,
    mut tell: impl FnMut(&'static str, &dyn fmt::Display) -> Result<(), E>,
) -> Result<(), E> {
    ALL.iter().try_for_each(|setting| match setting {
        Any::One(one) => tell(one.name, &one.word(settings)),
        Any::Copy => tell("copy", &Copy(settings)),
        Any::Hca if settings & SETTING_HCA_OFF != 0 => tell("hca", &"off"),
        Any::Hca if device.is_empty() => tell("hca", &"adopt"),
        Any::Hca => tell("hca", &device),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(settings: u64, device: &str) -> Vec<String> {
        let mut all = Vec::new();
        let done: Result<(), ()> = each(settings, device, |name, value| {
            all.push(format!("{name}={value}"));
            Ok(())
        });
        assert_eq!(done, Ok(()));
        all
    }

    #[test]
    fn every_value_is_told_and_changes_nothing_else() {
        let flags = SETTING_FORKED | SETTING_GAVE_UP;
        let nothing = said(flags, "");
        for (at, setting) in ALL.iter().enumerate() {
            let Any::One(setting) = setting else { continue };
            for (n, word) in setting.words.iter().enumerate() {
                let bits = setting.bits(n as u64);
                assert_eq!(bits & (flags | SETTING_HCA_OFF), 0, "{}", setting.name);
                let mut expected = nothing.clone();
                expected[at] = format!("{}={word}", setting.name);
                assert_eq!(said(flags | bits, ""), expected);
                assert_eq!(bits & COPY_MASK, 0);
            }
        }
    }

    #[test]
    fn orders_of_mechanisms() {
        let copy = |order: &[usize], auto| {
            let bits = copy_bits(order.iter().copied(), auto);
            said(bits, "")[9].clone()
        };
        assert_eq!(copy(&[0, 1, 2, 3, 4], true), "copy=auto");
        assert_eq!(copy(&[], false), "copy=off");
        assert_eq!(copy(&[2], false), "copy=cma");
        assert_eq!(
            copy(&[4, 3, 2, 1, 0], false),
            "copy=helper,knem,cma,xpmem,map"
        );
    }

    #[test]
    fn adapters() {
        assert_eq!(said(SETTING_HCA_OFF, "rxe0")[4], "hca=off");
        assert_eq!(said(0, "")[4], "hca=adopt");
        assert_eq!(said(0, "rxe0")[4], "hca=rxe0");
    }

    #[test]
    fn nonsense_is_a_question_mark() {
        let all = said(!SETTING_HCA_OFF & !COPY_AUTO, "");
        assert_eq!(all[..2], ["pin=auto", "intercept=?"]);
        assert_eq!(
            all[9],
            format!("copy={}", ["?"; MECHANISMS.len()].join(","))
        );
    }
    #[test]
    fn what_is_told_ends_where_it_fails() {
        let mut left = 3;
        let done = each(0, "", |name, _| {
            left -= 1;
            if left == 0 {
                return Err(name);
            }
            Ok(())
        });
        assert_eq!(done, Err("on_limit"));
    }

    /// Checks that a value which does not fit leaves the bits of other settings alone.
    #[test]
    fn a_value_that_there_is_not_has_no_other_bits() {
        assert_eq!(Setting::SCOPE.bits(3), Setting::SCOPE.bits(1));
        assert_eq!(Setting::PIN.bits(4), 0);
        let many = copy_bits([0; 9].into_iter(), false);
        assert_eq!(many & !COPY_MASK, 0);
    }
}

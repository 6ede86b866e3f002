//! From the constructor to the first tracked call, and the end.

use crate::arch::{self, Frame};
use crate::base::{
    copies, counters, launched, maps, mode,
    phase::{self, Phase},
    process, settings,
};
use crate::config::{
    Access, Complaint, Config, Environment, Hca, Intercept, Pin, Problem, Share, Switch, FILES,
};
use crate::foreign;
use crate::helper;
use crate::huge;
use crate::intercept::{self, selftest, strict, symbols};
use crate::limits;
use crate::logger;
use crate::patch;
use crate::registrar::pin;
use crate::rights;
use crate::stats;
use crate::store::write_text;
use crate::sys::{self, file, lasting, mappings, time};
use crate::text::{Lossy, Text};
use crate::track::{self, anew, flight, fork, kept, whole};
use core::fmt::Write;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use regall_directory::layout::{Call, Counter, Header, SETTING_HCA_OFF};
use regall_directory::planted;
use regall_directory::settings::{each as each_setting, Setting, LAUNCHERS};
use regall_directory::vocab::{Flags, Prot};

static BUDGET: AtomicU64 = AtomicU64::new(u64::MAX);
static SELFTEST_MISSED: AtomicU64 = AtomicU64::new(0);
static STACK_FLOOR: AtomicU64 = AtomicU64::new(0);
static SITES: [AtomicU32; 2] = [AtomicU32::new(0), AtomicU32::new(0)];

/// A stack with a limit up to this is grown to it at start-up, bytes.
const STACK_TOUCHED: u64 = 64 << 20;

/// The constructor's arrival: `frame` holds (argc, argv, envp), if glibc calls it.
#[cold]
#[inline(never)]
pub fn construct(frame: &Frame) {
    if !foreign::is_from_glibc(&frame.args) {
        return foreign::decline();
    }
    // SAFETY: glibc gives constructors main's arguments.
    let env = unsafe { Environment::new(frame.args[2] as *const *const core::ffi::c_char) };
    #[cfg(feature = "planted")]
    env.with(planted::VARIABLE, planted::choose);
    let asked = env.with(b"REGALL", Switch::of).unwrap_or(Switch::Off);
    let switch = planted!("on-by-itself", Switch::On, asked);
    if switch == Switch::Off || !wanted_here(env) {
        return;
    }
    // Variables name files that are written. ld.so keeps the environment of a setuid
    // program, and /etc/ld.so.preload is for these, too.
    if planted!("privileged-too", false, sys::process::is_privileged()) {
        return;
    }
    if switch == Switch::Unclear {
        return tell_unclear(env);
    }
    let (begun, ticks) = (time::now(), arch::ticks());
    if !read_settings(env) {
        return;
    }
    // SAFETY: nothing is logged or written yet, and the program has one thread.
    unsafe { launched::remember(env) };
    logger::start(settings::config());
    if copies::is_another_on() {
        log::warn!("another copy of libregall.so is on in this process: this one stays off");
        return;
    }
    if under_valgrind(env) {
        log::warn!(
            "valgrind translates this program's code, so it can't be patched: regall stays off"
        );
        return;
    }
    arch::init();
    let ready = time::now();
    time::calibrate(
        arch::ticks().wrapping_sub(ticks),
        ready.saturating_sub(begun),
    );
    start(env);
    let spent = time::now().saturating_sub(begun);
    time::calibrate(arch::ticks().wrapping_sub(ticks), spent);
    counters::add(Counter::StartNanos, spent);
}

/// Says that REGALL has a value that may be meant as yes, if warnings are wanted.
#[cold]
#[inline(never)]
fn tell_unclear(env: Environment) {
    let silent = |level: &[u8]| matches!(level, b"off" | b"error");
    if env.with(b"REGALL_LOG", silent) == Some(true) {
        return;
    }
    env.with(b"REGALL", |value| {
        logger::early(
            "warn",
            format_args!(
                "only REGALL=1 turns regall on; it is off with REGALL={}",
                Lossy(value)
            ),
        );
    });
}

/// By REGALL_ONLY, or else by the list of launchers.
#[cold]
#[inline(never)]
fn wanted_here(env: Environment) -> bool {
    let mut buf = [0u8; 1024];
    let Ok(path) = file::read_link(c"/proc/self/exe", &mut buf) else {
        return true;
    };
    let name = path.rsplit(|b| *b == b'/').next().unwrap_or(path);
    match env.with(b"REGALL_ONLY", |only| {
        crate::glob::matches_any(only, name) || crate::glob::matches_any(only, path)
    }) {
        Some(named) => planted!("only-is-all", true, named),
        None if planted!("launchers-too", true, false) => true,
        None => !crate::glob::matches_any(LAUNCHERS, name),
    }
}

/// Whether valgrind runs this program, whatever tool of it: all of them preload something.
/// It may have translated code already, and makes system calls itself as it thinks fit.
#[cold]
#[inline(never)]
fn under_valgrind(env: Environment) -> bool {
    const PRELOADED: &[u8] = b"/vgpreload_";
    let has = |list: &[u8]| list.windows(PRELOADED.len()).any(|w| w == PRELOADED);
    env.with(b"LD_PRELOAD", has) == Some(true)
}

#[cold]
#[inline(never)]
fn read_settings(env: Environment) -> bool {
    // SAFETY: single-threaded constructor, before any reader.
    let config = unsafe { settings::to_be_read() };
    let mut good = true;
    let chosen = env.names_the_library();
    env.each(|name, value| {
        if name != b"REGALL" && !name.starts_with(b"REGALL_") {
            return;
        }
        let writes = FILES.contains(&name);
        if !chosen && planted!("files-of-others", false, writes) {
            return;
        }
        if let Err(problem) = crate::config::set(config, name, value) {
            if problem != Problem::Name {
                good = planted!("malformed-is-taken", good, false);
                logger::early(
                    "error",
                    format_args!(
                        "{}",
                        Complaint {
                            name,
                            value,
                            problem
                        }
                    ),
                );
            }
        }
    });
    config.complete();
    if good && !chosen && config.log_level >= log::LevelFilter::Warn {
        env.each(|name, _| {
            if FILES.contains(&name) {
                let name = Lossy(name);
                let why = format_args!("{name} is ignored: LD_PRELOAD does not name the library");
                logger::early("warn", why);
            }
        });
    }
    if good {
        env.each(|name, value| {
            let unknown = name.starts_with(b"REGALL_")
                && crate::config::set(&mut Config::new(), name, value) == Err(Problem::Name);
            if unknown && config.log_level >= log::LevelFilter::Warn {
                let problem = Problem::Name;
                logger::early(
                    "warn",
                    format_args!(
                        "{}",
                        Complaint {
                            name,
                            value,
                            problem
                        }
                    ),
                );
            }
        });
    }
    good
}

#[cold]
#[inline(never)]
fn start(env: Environment) {
    sys::own_memory();
    lasting::keep(mappings::is_live);
    track::filters::init();
    regall_bridge::lock::in_process();
    rights::init();
    track::adopting::init();
    let budget = limits::first_budget(settings::config().limit, env);
    BUDGET.store(budget.pins, Relaxed);
    kept::begin(settings::config().pin);
    let mark = fork::init();
    prepare_stack();
    huge::init();
    let mode = install();
    mode::set(mode);
    crate::share::init(mode, env);
    {
        let Some(mut guard) = track::lock() else {
            return;
        };
        anew::new_directory(&mut guard);
        track::heap::begin_at(sys::current_brk());
        if let Some(page) = mark {
            guard.insert(page, track::own_memory(Prot::from_call(3, false)));
        }
    }
    phase::begin();
    let flight = track::open(Call::Fork);
    flight::made();
    note_own_memory();
    whole::first(Flags::EMPTY);
    drop(flight);
    track::domains::own_device();
    if mode == Intercept::Strict && !strict::start() {
        log::warn!(
            "no Syscall User Dispatch on this kernel: REGALL_INTERCEPT=strict acts as patch"
        );
        mode::not_strict();
    }
    helper::start_if_needed();
    sys::are_in_use();
    say_on();
}

/// Puts the hooks in and tests them. Returns what is in force.
#[cold]
#[inline(never)]
fn install() -> Intercept {
    let mut asked = settings::config().intercept;
    if asked == Intercept::Strict && strict::stacks_are_too_small() {
        log::warn!(
            "a Go program's stacks are too small for REGALL_INTERCEPT=strict: it acts as patch"
        );
        asked = Intercept::Patch;
    }
    if asked != Intercept::Symbols {
        let config = patch::Config {
            strict: asked == Intercept::Strict,
            ioctl: true,
            verbs: settings::config().hca != Hca::Off,
        };
        let report = intercept::install(config);
        SITES[0].store(report.patched, Relaxed);
        SITES[1].store(report.refused, Relaxed);
        if report.patched > 0 && report.write_errno.is_none() {
            let mut missed = selftest::run();
            if report.cancellable {
                symbols::install_cancellable(asked == Intercept::Strict);
                missed &= !(1 << Call::Msync as u64);
            }
            SELFTEST_MISSED.store(missed, Relaxed);
            for call in Call::ALL.iter().filter(|c| missed & 1 << **c as u64 != 0) {
                log::warn!(
                    "self-test: {} does not arrive here; what it changes is missed",
                    call.word()
                );
            }
            return asked;
        }
        log::warn!(
            "code can't be patched here ({:?}): REGALL_INTERCEPT=symbols is used instead, which misses what libc does inside",
            report.write_errno
        );
    }
    symbols::install();
    Intercept::Symbols
}

/// The patcher's memory is the shim's.
fn note_own_memory() {
    patch::zones(|range| {
        if let Some(mut guard) = track::lock() {
            // Its protection is read from the kernel with everything else's.
            guard.insert(range, track::own_memory(Prot::from_call(5, false)));
        }
    });
}

/// The main stack grows without a call. Where it is to be pinned and its limit
/// is moderate it is grown to it now; else it is published as growable.
fn prepare_stack() {
    let Ok((soft, _)) = sys::rlimit(libc::RLIMIT_STACK) else {
        return;
    };
    let sp = arch::stack_pointer();
    if soft == u64::MAX {
        STACK_FLOOR.store(regall_directory::addr::PAGE, Relaxed);
        return;
    }
    let Some(end) = maps::mapping_at(sp).map(|m| m.end()) else {
        return;
    };
    let floor = end
        .saturating_sub(soft)
        .next_multiple_of(regall_directory::addr::PAGE);
    STACK_FLOOR.store(floor, Relaxed);
    let pinned = pin::locks() && limits::memlock().is_none();
    if pinned && soft <= STACK_TOUCHED && floor < sp {
        // One access grows the mapping; the pages between stay untouched. The
        // kernel makes it for us: should the stack not grow, there is no SIGSEGV.
        let _ = sys::readable(floor);
    }
}

/// The settings as the directory has them.
fn settings_in_force(c: &Config) -> u64 {
    let off = match c.hca {
        Hca::Off => SETTING_HCA_OFF,
        _ => 0,
    };
    // In the order of the words that stand for them.
    let pin = match c.pin {
        Pin::Off => 0,
        Pin::OnFault => 1,
        Pin::Populate => 2,
        Pin::Auto => 3,
    };
    let access = match c.access {
        Access::Local => 0,
        Access::RemoteRead => 1,
        Access::RemoteWrite => 2,
        Access::RemoteAtomic => 3,
    };
    let share = match c.share {
        Share::Always if crate::share::on() => 2,
        Share::Heap if crate::share::on() => 1,
        _ => 0,
    };
    Setting::PIN.bits(pin)
        | Setting::INTERCEPT.bits(mode::mode() as u64)
        | off
        | Setting::HCA_MODE.bits(c.hca_odp.into())
        | Setting::SCOPE.bits(c.scope_data.into())
        | Setting::KEYS.bits(c.keys_exact.into())
        | Setting::ACCESS.bits(access)
        | Setting::ON_LIMIT.bits(c.fail_on_limit.into())
        | Setting::FORK.bits(c.fork_all.into())
        | Setting::SHARE.bits(share)
        | Setting::HUGE.bits(huge::on().into())
        | c.copy.bits()
}

/// Says that the shim is on, and how: once in each program that is executed.
#[cold]
#[inline(never)]
fn say_on() {
    if !phase::tracking() || log::max_level() < log::LevelFilter::Info {
        return;
    }
    let Some(h) = counters::header() else {
        return;
    };
    let mut settings: Text<320> = Text::new();
    let _ = each_setting(
        h.settings.load(Relaxed),
        settings::device(),
        |name, value| write!(settings, "{name}={value} "),
    );
    let _ = match BUDGET.load(Relaxed) {
        u64::MAX => write!(settings, "limit=none"),
        bytes => write!(settings, "limit={}M", bytes >> 20),
    };
    let mut exe = [0u8; 256];
    let program = file::read_link(c"/proc/self/exe", &mut exe).unwrap_or(b"?");
    let (settings, program) = (Lossy(settings.as_bytes()), Lossy(program));
    log::info!("on: {settings} in {program}");
}

/// What may be pinned, as it was reckoned at start-up.
pub fn budget() -> limits::Budget {
    let bytes = BUDGET.load(Relaxed);
    limits::Budget {
        pins: bytes,
        all: bytes,
    }
}

/// The header's words that don't change, in a new directory.
pub fn write_settings(h: &Header) {
    let c = settings::config();
    h.settings.store(settings_in_force(c), Relaxed);
    write_text(&h.device, settings::device().as_bytes());
    h.sites_patched
        .store(u64::from(SITES[0].load(Relaxed)), Relaxed);
    h.sites_refused
        .store(u64::from(SITES[1].load(Relaxed)), Relaxed);
    h.selftest_missed
        .store(SELFTEST_MISSED.load(Relaxed), Relaxed);
    h.stack_floor.store(STACK_FLOOR.load(Relaxed), Relaxed);
}

/// The process is about to end: the statistics are written, the directory goes.
/// Not for a vfork child's _exit: it has its parent's memory, not its pid.
#[cold]
#[inline(never)]
pub fn finish() {
    if phase::phase() == Phase::Inert || !sys::is_memory_owner() || !process::is_known() {
        return;
    }
    planted!("no-statistics", (), stats::write());
    crate::cookies::end();
    if let Some(guard) = track::lock() {
        planted!("directory-stays", (), guard.remove_directory());
    }
}

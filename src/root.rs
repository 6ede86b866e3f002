//! Where the library begins and ends, and the one place that knows who has to be told of what,
//! and in which order.

use crate::arch::Frame;
use crate::intercept::{self, strict};
use crate::patch;
use crate::track::{self, subscribers::Subscribers};
use crate::{
    boxes, capi, check, cookies, copier, copying, helper, host, memory, rights, rotator, startup,
    threads, verbs,
};
use regall_bridge::boxes::hold;
use regall_directory::layout::{Call, Header};

/// What `track` is handed at start-up.
pub static ALL: Subscribers = Subscribers {
    other_call,
    verbs: verbs::handle,
    adapters_closed: verbs::requests::closed,
    before: check::events::before,
    after: check::events::after,
    child_begins: &[
        descriptors_begin_anew,
        threads::forget,
        copier::forget,
        boxes::forget,
        hold::child_begins,
        rotator::forget,
        rights::child,
        patch::recover,
        verbs::handles::child,
        check::life::child,
    ],
    new_directory: &[
        startup::write_settings,
        permit_tracers,
        cookies_begin_anew,
        offer,
        boxes::publish,
    ],
    budget: startup::budget,
    child_tracked: &[
        patch::search_left,
        strict::child,
        copying::forget,
        memory::forget,
        helper::start_if_needed,
        check::life::child_tracked,
    ],
    new_code: &[intercept::new_code, check::life::new_code],
    code_gone: &[patch::forget, check::life::code_gone],
    memory_leaves: &[cookies::leave],
    pages_replaced: &[cookies::replaced],
    pages_held: cookies::shadowed,
    helpers: helper::count,
    keys_idle: rotator::begin,
    domain_opened: rotator::begin_now,
    rotators: rotator::count,
    keys_pause: rotator::pause,
    keys_resume: rotator::resume,
    nothing_lent: &[withdraw, helper_ends],
    filter_comes: verbs::real::find_again,
};

fn other_call(call: Call, frame: &mut Frame) -> i64 {
    match call {
        Call::ProcessVmReadv | Call::ProcessVmWritev => copying::attach(call, frame),
        Call::Credentials => rights::change(frame),
        Call::ThreadStart | Call::Sigaction | Call::Sigprocmask => strict::handle(call, frame),
        Call::ExitGroup => {
            check::life::finish();
            startup::finish();
            track::real(frame)
        }
        _ => track::real(frame),
    }
}

fn descriptors_begin_anew() {
    // SAFETY: fork has taken this thread alone along.
    unsafe { capi::mapping::child() };
}

fn permit_tracers(_: &Header) {
    host::permit_tracers();
}

fn cookies_begin_anew(_: &Header) {
    cookies::forget();
    helper::forget();
}

fn offer(header: &Header) {
    host::offer(header);
}

fn withdraw(_: bool) {
    host::withdraw();
}

fn helper_ends(alone: bool) {
    match alone {
        true => helper::leave(),
        false => helper::end(),
    }
}

/// The constructor's arrival.
fn construct(frame: &Frame) {
    track::subscribers::set(&ALL);
    startup::construct(frame);
    check::life::begin();
}

// The constructor. It goes through the same entry as every call, so that a panic
// in it finds its way back, too.
#[cfg(not(any(test, fuzzing, std_beside)))]
mod constructor {
    use crate::{check, intercept, startup, thread};
    use core::arch::global_asm;

    global_asm!(
        r#"
        .hidden regall_construct
        .globl regall_construct
        .type regall_construct, @function
    regall_construct:
        .cfi_startproc
        mov rax, -1
        sub rsp, 8
        .cfi_def_cfa_offset 16
        call regall_entry_call
        add rsp, 8
        .cfi_def_cfa_offset 8
        ret
        .cfi_endproc
        .size regall_construct, . - regall_construct
    "#
    );

    unsafe extern "C" {
        fn regall_construct(argc: u64, argv: u64, envp: u64);
    }

    /// The dynamic linker begins here, with what main gets.
    extern "C" fn construct(argc: u64, argv: u64, envp: u64) {
        intercept::begin_with(super::construct);
        // SAFETY: it passes its arguments on, whatever they are.
        unsafe { regall_construct(argc, argv, envp) }
    }

    #[used]
    #[unsafe(link_section = ".init_array")]
    static CONSTRUCTOR: extern "C" fn(u64, u64, u64) = construct;

    /// exit() ends here; what libc does after it is between it and the kernel.
    extern "C" fn destruct() {
        if thread::current().selftest.get() == thread::STRICT {
            return;
        }
        check::life::finish();
        startup::finish();
    }

    #[used]
    #[unsafe(link_section = ".fini_array")]
    static DESTRUCTOR: extern "C" fn() = destruct;
}

#[cfg(not(any(test, fuzzing, std_beside)))]
mod panic {
    /// Nothing on the hook path is meant to panic. If something does, the shim
    /// stands down and the program goes on as if it had never been there.
    #[panic_handler]
    fn panic(info: &core::panic::PanicInfo) -> ! {
        crate::intercept::stand_down(info)
    }

    // core's own functions are built to unwind, and name what would. It is never called: nothing
    // unwinds. Where all is optimised as one the name is gone.
    #[cfg(debug_assertions)]
    core::arch::global_asm!(
        ".hidden rust_eh_personality",
        ".globl rust_eh_personality",
        ".type rust_eh_personality, @function",
        "rust_eh_personality: ud2",
        ".size rust_eh_personality, 2",
    );
}

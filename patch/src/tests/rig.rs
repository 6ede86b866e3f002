//! Code that is patched and run: an entry that counts, pages of code, and calls.

use super::*;

/// What a site had in its registers when it arrived at [`test_entry`].
pub static ARRIVED: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];

// Counts an arrival, records the registers, answers 4711, and keeps everything
// but rax, rcx and r11.
core::arch::global_asm!(
    ".globl regall_test_entry",
    "regall_test_entry:",
    "lea rcx, [rip + {arrived}]",
    "mov [rcx], rax",
    "mov [rcx + 8], rdi",
    "mov [rcx + 16], rsi",
    "mov [rcx + 24], rdx",
    "mov [rcx + 32], r10",
    "mov [rcx + 40], r8",
    "mov [rcx + 48], r9",
    "inc qword ptr [rcx + 56]",
    "mov eax, 4711",
    "ret",
    arrived = sym ARRIVED,
);

unsafe extern "C" {
    pub fn regall_test_entry();
}

/// Tests that run patched code take turns: the patcher's state is one.
pub static TURN: Mutex<()> = Mutex::new(());

pub fn alone() -> std::sync::MutexGuard<'static, ()> {
    TURN.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

pub fn with_test_entry() -> std::sync::MutexGuard<'static, ()> {
    let turn = alone();
    let mut guard = loop {
        if let Some(guard) = Guard::take() {
            break guard;
        }
    };
    let state = guard.state();
    state.patches.entries = [regall_test_entry as *const () as u64; 2];
    turn
}

/// A page of executable code made of `code`, and its range.
pub fn page(code: &[u8]) -> PageRange {
    // Where the kernel puts what a program maps: the shim's own memory is elsewhere.
    let at = sys::map_fresh(4096, 3, libc::MAP_PRIVATE).unwrap() as *mut u8;
    // SAFETY: a fresh page; the code is shorter.
    unsafe { core::ptr::copy_nonoverlapping(code.as_ptr(), at, code.len()) };
    // SAFETY: nobody writes there any more.
    unsafe { sys::protect(at as u64, 4096, libc::PROT_READ | libc::PROT_EXEC) }.unwrap();
    PageRange::new(at as u64, at as u64 + 4096).unwrap()
}

/// A C function that passes its arguments on as a system call's, leaves
/// `before` right before the `syscall`, uses the red zone, and returns rax if the
/// red zone, the callee-saved registers and the stack are as they were.
pub fn caller(before: &[u8]) -> Vec<u8> {
    let mut code = vec![
        0x49, 0x89, 0xca, // mov r10, rcx
        0x48, 0xb9, 1, 2, 3, 4, 5, 6, 7, 8, // mov rcx, 0x0807060504030201
        0x48, 0x89, 0x4c, 0x24, 0xf8, // mov [rsp - 8], rcx
        0x48, 0x89, 0x4c, 0x24, 0x80, // mov [rsp - 128], rcx
    ];
    code.extend(before);
    code.extend([0x0f, 0x05]);
    code.extend([
        0x48, 0xb9, 1, 2, 3, 4, 5, 6, 7, 8, // mov rcx, 0x0807060504030201
        0x48, 0x3b, 0x4c, 0x24, 0xf8, // cmp rcx, [rsp - 8]
        0x75, 8, // jne bad
        0x48, 0x3b, 0x4c, 0x24, 0x80, // cmp rcx, [rsp - 128]
        0x75, 1,    // jne bad
        0xc3, // ret
        0x0f, 0x0b, // bad: ud2
    ]);
    code
}

pub fn mov_eax(nr: u32) -> Vec<u8> {
    let [a, b, c, d] = nr.to_le_bytes();
    vec![0xb8, a, b, c, d]
}

pub type Six = extern "C" fn(u64, u64, u64, u64, u64, u64) -> i64;

pub fn call(range: PageRange, args: [u64; 6]) -> i64 {
    call_at(range.start(), args)
}

pub fn call_at(at: u64, args: [u64; 6]) -> i64 {
    // SAFETY: a C function of that type was put there.
    let function: Six = unsafe { core::mem::transmute(at as *const ()) };
    let [a, b, c, d, e, f] = args;
    function(a, b, c, d, e, f)
}

pub fn arrivals() -> u64 {
    ARRIVED[7].load(Ordering::Relaxed)
}

pub fn scan_page(range: PageRange) -> Report {
    loop {
        let report = scan(range, range.end(), false);
        if !report.busy {
            return report;
        }
    }
}

pub fn drop_page(range: PageRange) {
    crate::unmap(range);
    forget(range);
}

/// A page that is a little ELF file: headers, a table of functions with one entry,
/// and `code`, which is that function. Also the address of the code.
pub fn elf_page(code: &[u8]) -> (PageRange, u64) {
    elf_page_of(&[code])
}

/// As [`elf_page`], with several functions one behind the other.
pub fn elf_page_of(functions: &[&[u8]]) -> (PageRange, u64) {
    const HEADER: usize = 256;
    const FRAME: usize = 320;
    const CODE: usize = 512;
    let mut image = vec![0u8; CODE];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    let word = |n: usize| (n as u32).to_le_bytes();
    put(0, b"\x7fELF\x02\x01\x01");
    put(32, &64u64.to_le_bytes());
    put(54, &[56, 0, 2, 0]);
    put(64, &1u32.to_le_bytes()); // PT_LOAD at offset and address 0
    put(120, &0x6474_e550u32.to_le_bytes());
    put(120 + 16, &(HEADER as u64).to_le_bytes());
    put(HEADER, &[1, 0x1b, 3, 0x3b]);
    put(HEADER + 8, &word(functions.len()));
    put(FRAME + 8, b"\x01zR\0");
    let mut at = CODE;
    for (n, code) in functions.iter().enumerate() {
        let (entry, frame) = (HEADER + 12 + 8 * n, FRAME + 32 + 32 * n);
        put(entry, &word(at - HEADER));
        put(entry + 4, &word(frame - HEADER));
        put(frame + 4, &word(frame + 4 - FRAME));
        put(frame + 8, &word(at - frame - 8));
        put(frame + 12, &word(code.len()));
        at += code.len();
    }
    image.extend(functions.concat());
    let range = page(&image);
    (range, range.start() + CODE as u64)
}

/// A wrapper as in the C library, with padding behind it, and the address of its function.
pub fn padded_wrapper(nr: u32, first: u8) -> (PageRange, u64) {
    let mut code = mov_eax(nr);
    // syscall; cmp rax, -4095; ret
    code.extend([0x0f, 0x05, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0xc3]);
    code[0] = first;
    let (range, function) = elf_page(&code);
    let nops = [0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0];
    let behind = function + code.len() as u64;
    poke(behind, &nops);
    (range, function)
}

pub fn poke(at: u64, bytes: &[u8]) {
    Writer::default().write(at, bytes, Use::Fresh).unwrap();
}

pub fn peek<const N: usize>(at: u64) -> [u8; N] {
    // SAFETY: the tests look at pages that are mapped.
    unsafe { *(at as *const [u8; N]) }
}

/// Searches `range` as code that may be running: with its owner waiting, or left.
pub fn search_running(range: PageRange, left: bool) -> Report {
    let job = Job {
        range,
        running: true,
        patch: true,
        gone: false,
    };
    let mut report = Report::default();
    let mut guard = Guard::take().unwrap();
    match left {
        true => guard.state().search_copied(job, &mut report),
        false => guard.state().search(job, &mut report),
    }
    report
}

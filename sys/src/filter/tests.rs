use super::program::{BPF_A, BPF_TXA};
use super::*;
use libc::{sock_filter, BPF_ABS, BPF_ALU, BPF_IMM, BPF_JMP, BPF_K, BPF_LD, BPF_LDX, BPF_LEN};
use libc::{BPF_MEM, BPF_MISC, BPF_RET, BPF_ST, BPF_STX, BPF_W, BPF_X};
use libc::{SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_TRAP};

fn jump(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    let code = code as u16;
    sock_filter { code, jt, jf, k }
}

fn step(code: u32, k: u32) -> sock_filter {
    jump(code, k, 0, 0)
}

fn load(k: u32) -> sock_filter {
    step(BPF_LD | BPF_W | BPF_ABS, k)
}

fn returns(k: u32) -> sock_filter {
    step(BPF_RET | BPF_K, k)
}

const RETURN_A: u32 = BPF_RET | BPF_A;
const CALL: [u64; 7] = [9, 0x1_0000_0002, 3, 4, 5, 6, 0x7_0000_0008];

/// What is left in the accumulator.
fn left(steps: &[sock_filter]) -> Option<u32> {
    let mut all = steps.to_vec();
    all.push(step(RETURN_A, 0));
    answer(&all, &CALL)
}

#[test]
fn number_processor_and_arguments_are_where_the_kernel_has_them() {
    let words = [(0, 9), (4, arch::AUDIT), (16, 2), (20, 1), (24, 3), (60, 7)];
    for (k, value) in words {
        assert_eq!(left(&[load(k)]), Some(value), "{k}");
    }
    assert_eq!(left(&[load(8)]), None);
    assert_eq!(left(&[load(12)]), None);
    assert_eq!(left(&[step(BPF_LD | BPF_W | BPF_LEN, 0)]), Some(64));
}

#[test]
fn words_are_kept_and_calculated_with() {
    let ten = step(BPF_LD | BPF_IMM, 10);
    let three = step(BPF_LDX | BPF_IMM, 3);
    let with = |operation, k| left(&[ten, three, step(BPF_ALU | operation, k)]);
    let results = [
        (libc::BPF_ADD | BPF_X, 13),
        (libc::BPF_SUB | BPF_X, 7),
        (libc::BPF_MUL | BPF_X, 30),
        (libc::BPF_DIV | BPF_X, 3),
        (libc::BPF_AND | BPF_X, 2),
        (libc::BPF_OR | BPF_X, 11),
        (libc::BPF_XOR | BPF_X, 9),
        (libc::BPF_LSH | BPF_X, 80),
        (libc::BPF_RSH | BPF_X, 1),
        (libc::BPF_NEG, 10u32.wrapping_neg()),
    ];
    for (operation, value) in results {
        assert_eq!(with(operation, 99), Some(value), "{operation:#x}");
    }
    assert_eq!(with(libc::BPF_ADD | BPF_K, 5), Some(15));
    let nothing = step(BPF_LDX | BPF_IMM, 0);
    let divide = step(BPF_ALU | libc::BPF_DIV | BPF_X, 0);
    assert_eq!(left(&[ten, nothing, divide]), None);
    let swapped = [
        ten,
        three,
        step(BPF_ST, 15),
        step(BPF_STX, 0),
        step(BPF_LD | BPF_MEM, 0),
        step(BPF_LDX | BPF_MEM, 15),
        step(BPF_ALU | libc::BPF_SUB | BPF_X, 0),
    ];
    assert_eq!(left(&swapped), Some(3u32.wrapping_sub(10)));
    let (tax, txa) = (step(BPF_MISC, 0), step(BPF_MISC | BPF_TXA, 0));
    assert_eq!(left(&[ten, tax, three, txa]), Some(3));
    assert_eq!(left(&[ten, tax, step(BPF_LD | BPF_IMM, 1), txa]), Some(10));
}

#[test]
fn jumps_go_forward_by_what_holds() {
    let says = |how, k| {
        let steps = [
            load(0),
            jump(BPF_JMP | how | BPF_K, k, 1, 0),
            returns(0),
            returns(1),
        ];
        answer(&steps, &CALL) == Some(1)
    };
    let (equal, greater) = (libc::BPF_JEQ, libc::BPF_JGT);
    let (least, some) = (libc::BPF_JGE, libc::BPF_JSET);
    assert!(says(equal, 9) && !says(equal, 8));
    assert!(says(greater, 8) && !says(greater, 9));
    assert!(says(least, 9) && !says(least, 10));
    assert!(says(some, 1) && !says(some, 6));
    let over = [step(BPF_JMP | libc::BPF_JA, 1), returns(0), returns(1)];
    assert_eq!(answer(&over, &CALL), Some(1));
    // The kernel takes no such program.
    assert_eq!(answer(&[step(BPF_JMP | libc::BPF_JA, 7)], &CALL), None);
    assert_eq!(answer(&[], &CALL), None);
}

#[test]
fn what_others_are_asked_or_told_of_does_not_pass() {
    for passing in [
        SECCOMP_RET_ALLOW,
        SECCOMP_RET_ERRNO | 1,
        libc::SECCOMP_RET_LOG,
    ] {
        assert!(passes(Some(passing)), "{passing:#x}");
    }
    let stopped = [
        SECCOMP_RET_KILL_PROCESS,
        libc::SECCOMP_RET_KILL_THREAD,
        SECCOMP_RET_TRAP | 7,
        libc::SECCOMP_RET_USER_NOTIF,
        libc::SECCOMP_RET_TRACE,
        SECCOMP_RET_ERRNO,
        SECCOMP_RET_ERRNO | libc::EINTR as u32,
        0x1234_0000,
    ];
    for stopped in stopped {
        assert!(!passes(Some(stopped)), "{stopped:#x}");
    }
    assert!(!passes(None));
}

/// The kernel's own verdict on programs made by chance agrees with ours: of each call, in a child,
/// whether it fails with the errno that the program gives it.
#[test]
fn the_kernel_says_the_same_of_programs_made_by_chance() {
    let mut seed = 1u64;
    let mut chance = move |below: u32| {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((seed >> 33) as u32) % below
    };
    let mut tried = 0;
    while tried < 60 {
        let steps = by_chance(&mut chance);
        let words = [5, 0xffff_ffff, 1 << 31, 3, u64::from(chance(64)), 1 << 40];
        let call = [
            libc::SYS_getppid as u64,
            words[0],
            words[1],
            words[2],
            words[3],
            words[4],
            words[5],
        ];
        let Some(said) = answer(&steps, &call) else {
            continue;
        };
        assert_eq!(kernel_says(&steps, &call), said & 0xffff, "{said:#x}");
        tried += 1;
    }
}

/// A program that ends with an errno of 0 to 4095, by what it has worked out; calls but getppid are
/// let through.
fn by_chance(chance: &mut impl FnMut(u32) -> u32) -> Vec<sock_filter> {
    let mut steps = vec![
        load(0),
        jump(
            BPF_JMP | libc::BPF_JEQ | BPF_K,
            libc::SYS_getppid as u32,
            1,
            0,
        ),
        returns(SECCOMP_RET_ALLOW),
        step(BPF_LD | BPF_IMM, chance(u32::MAX)),
        step(BPF_ST, 0),
        step(BPF_ST, 1),
        step(BPF_STX, 2),
        step(BPF_STX, 3),
    ];
    let operations = [
        libc::BPF_ADD,
        libc::BPF_SUB,
        libc::BPF_MUL,
        libc::BPF_DIV,
        libc::BPF_OR,
        libc::BPF_AND,
        libc::BPF_LSH,
        libc::BPF_RSH,
        libc::BPF_XOR,
        libc::BPF_NEG,
    ];
    let jumps = [libc::BPF_JEQ, libc::BPF_JGT, libc::BPF_JGE, libc::BPF_JSET];
    let end = 40;
    for at in 0..end {
        let register = if chance(2) == 0 { BPF_K } else { BPF_X };
        let k = 1 + chance(31);
        let far = (end - at - 1).min(8) as u32 + 1;
        steps.push(match chance(8) {
            0 => load(16 + 4 * chance(12)),
            1 => step(BPF_LDX | BPF_IMM, k),
            2 => step(BPF_LD | BPF_MEM, chance(4)),
            3 => step(BPF_ST, chance(4)),
            4 => step(
                if chance(2) == 0 {
                    BPF_MISC
                } else {
                    BPF_MISC | BPF_TXA
                },
                0,
            ),
            5 => {
                let how = jumps[chance(4) as usize];
                jump(
                    BPF_JMP | how | register,
                    k,
                    chance(far) as u8,
                    chance(far) as u8,
                )
            }
            6 => step(BPF_LDX | BPF_W | BPF_LEN, 0),
            _ => match operations[chance(10) as usize] {
                // The kernel shifts by no more; by a register it masks as the processor does.
                libc::BPF_NEG => step(BPF_ALU | libc::BPF_NEG, 0),
                operation => step(BPF_ALU | operation | register, k),
            },
        });
    }
    steps.extend([
        step(BPF_ALU | libc::BPF_AND | BPF_K, 0xfff),
        step(BPF_ALU | libc::BPF_OR | BPF_K, SECCOMP_RET_ERRNO),
        step(RETURN_A, 0),
    ]);
    steps
}

/// The errno that `call` has under the filter, in a process of its own.
fn kernel_says(steps: &[sock_filter], call: &[u64; 7]) -> u32 {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    // SAFETY: the child makes system calls only.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let program = libc::sock_fprog {
            len: steps.len() as u16,
            filter: steps.as_ptr().cast_mut(),
        };
        let [nr, a, b, c, d, e, f] = *call;
        // SAFETY: calls of this child's, about memory of its own.
        unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            let filter = libc::SECCOMP_MODE_FILTER;
            let set = libc::prctl(libc::PR_SET_SECCOMP, filter, &program);
            let value = match libc::syscall(nr as i64, a, b, c, d, e, f) {
                -1 => -i64::from(*libc::__errno_location()),
                value => value,
            };
            let said = if set == 0 { (-value) as u32 } else { u32::MAX };
            libc::write(ends[1], (&raw const said).cast(), 4);
            libc::_exit(0);
        }
    }
    let mut said = 0u32;
    // SAFETY: room for what the child writes; the descriptors and the child are this test's.
    unsafe {
        libc::read(ends[0], (&raw mut said).cast(), 4);
        libc::close(ends[0]);
        libc::close(ends[1]);
        libc::waitpid(pid, core::ptr::null_mut(), 0);
    }
    said
}

fn program(steps: &[sock_filter]) -> libc::sock_fprog {
    libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_ptr().cast_mut(),
    }
}

/// Nothing stops; of number `k` it goes by the arguments.
fn harmless(k: u32) -> [sock_filter; 5] {
    [
        load(0),
        jump(BPF_JMP | libc::BPF_JEQ | BPF_K, k, 0, 1),
        load(16),
        returns(SECCOMP_RET_ALLOW),
        returns(SECCOMP_RET_ALLOW),
    ]
}

#[test]
fn of_a_number_alone_is_known_what_no_argument_changes() {
    let steps = harmless(9);
    assert_eq!(answer(&steps, &[8]), Some(SECCOMP_RET_ALLOW));
    assert_eq!(answer(&steps, &[9]), None);
    assert_eq!(answer(&steps, &CALL), Some(SECCOMP_RET_ALLOW));
}

fn room() -> core::ptr::NonNull<u8> {
    let words: &'static mut [u64] = vec![0; ROOM / 8].leak();
    core::ptr::NonNull::from(words).cast()
}

fn what_other_threads_do(set: &Cell<u64>) {
    let (late, twice) = (harmless(41), harmless(42));
    let programs = (program(&late), program(&twice));
    let taken = |coming: Coming<'_>, program: &libc::sock_fprog| {
        // SAFETY: the program is there.
        unsafe { coming.taken(program) };
    };
    // What could not be read before the kernel had it is read then, although others have given up.
    let mut unread = begin(set);
    unread.give_room(room());
    unread.put_over(false);
    let place = unread.place.expect("a place");
    place.leave(UNKNOWN);
    taken(unread, &programs.0);
    assert_eq!(place.state.load(SeqCst), KEPT);
    assert!(is_equal(place.program(), &late));
    // Two bring the same at once, and it takes one place.
    let other = Cell::new(KNOWN);
    let two = [set, &other].map(|set| {
        let mut coming = begin(set);
        coming.give_room(room());
        assert_eq!(coming.read(&raw const programs.1 as u64), Ok(()));
        coming.put_over(false);
        coming
    });
    assert_ne!(other.get() & !set.get(), 0);
    two.into_iter()
        .for_each(|coming| taken(coming, &programs.1));
    assert_eq!(other.get() & !set.get(), 0);
    // While one is waited for, another takes its place: that is asked, too.
    let asked = Cell::new(0);
    let good = |over: u64| {
        let first = asked.replace(over) == 0;
        if first {
            ALL.fetch_or(1 << 60, SeqCst);
        }
        first
    };
    assert!(!are_all(good) && asked.get() & 1 << 60 != 0);
    ALL.fetch_and(!(1 << 60), SeqCst);
}

/// Whoever is stopped once is known to be, until another filter comes.
fn what_is_stopped(set: &Cell<u64>) {
    const NR: u32 = 300;
    let steps = [
        load(0),
        jump(BPF_JMP | libc::BPF_JEQ | BPF_K, NR, 1, 0),
        returns(SECCOMP_RET_ALLOW),
        returns(libc::SECCOMP_RET_KILL_PROCESS),
    ];
    let program = program(&steps);
    let mut coming = begin(set);
    coming.give_room(room());
    assert_eq!(coming.read(&raw const program as u64), Ok(()));
    coming.put_over(false);
    // SAFETY: the program is there.
    unsafe { coming.taken(&raw const program) };
    let (nr, era) = (u64::from(NR), || ERA.load(SeqCst));
    let known = || is_known_to_stop(era(), over_this_thread, nr);
    assert!(!known());
    assert!(is_stopped(&[nr, 0, 0, 0, 0, 0, 0]) && known());
    // Not of another thread, nor what passes.
    assert!(!is_known_to_stop(era(), || KNOWN | 1, nr));
    assert!(!is_stopped(&[39, 0, 0, 0, 0, 0, 0]));
    assert!(!is_known_to_stop(era(), over_this_thread, 39));
    let set = Cell::new(KNOWN);
    let other = begin(&set);
    assert!(!known());
    other.refused();
}

/// The place that is found where another thread is about to leave one and all are taken.
fn wait_for_a_place() -> usize {
    let taken: Vec<_> = std::iter::from_fn(free_place).collect();
    let last = &PLACES[*taken.last().expect("a place")];
    last.by.store(1, SeqCst);
    let leaves = std::thread::spawn(|| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        last.leave(FREE);
    });
    let n = free_place();
    leaves.join().expect("it ends");
    for n in taken {
        PLACES[n].leave(FREE);
    }
    n.unwrap_or(MOST)
}

/// (In one test: the filters are the process's.)
#[test]
fn filters_come_and_go() {
    let set = Cell::new(KNOWN);
    let bring = |k: u32, all: bool, how: &dyn Fn(Coming<'_>, &libc::sock_fprog)| {
        let steps = harmless(k);
        let program = program(&steps);
        let mut coming = begin(&set);
        if coming.wants_room() {
            coming.give_room(room());
        }
        assert_eq!(coming.read(&raw const program as u64), Ok(()));
        coming.put_over(all);
        how(coming, &program);
    };
    // SAFETY: the program is there.
    let taken = |coming: Coming<'_>, program: &libc::sock_fprog| unsafe { coming.taken(program) };
    // What is refused leaves nothing, not even in the set of who comes then.
    let mut probe = begin(&set);
    probe.give_room(room());
    assert_eq!(probe.read(0), Err(Errno::FAULT));
    probe.put_over(true);
    assert_eq!((set.get(), ALL.load(SeqCst)), (KNOWN | 1, 1));
    assert!(is_stopped(&[39, 0, 0, 0, 0, 0, 0]));
    probe.refused();
    bring(1, true, &|coming, _| coming.refused());
    assert_eq!((set.get(), ALL.load(SeqCst), every()), (KNOWN, 0, KNOWN));
    // The same takes one place, for whomever.
    bring(1, false, &taken);
    bring(1, true, &taken);
    bring(1, true, &|coming, _| coming.refused());
    assert_eq!(
        (set.get(), ALL.load(SeqCst), every()),
        (KNOWN | 1, 1, KNOWN | 1)
    );
    // One that comes holds, and is not over others.
    bring(2, false, &|coming, program| {
        assert_eq!((set.get(), every()), (KNOWN | 3, KNOWN | 1));
        assert!(!is_stopped(&[39, 0, 0, 0, 0, 0, 0]));
        taken(coming, program);
    });
    assert_eq!((ALL.load(SeqCst), every()), (1, KNOWN | 3));
    // What all let through is known, until another comes.
    let seen = |nr: usize| SEEN[nr].load(SeqCst);
    let era = || ERA.load(SeqCst);
    for nr in [39, 2] {
        assert!(!is_stopped(&[nr, 0, 0, 0, 0, 0, 0]));
    }
    assert_eq!((seen(39), seen(2)), (era() | 1, era()));
    assert!(makes(40) && seen(40) == era() | 1);
    bring(39, false, &taken);
    assert!(!is_stopped(&[39, 0, 0, 0, 0, 0, 0]));
    assert_eq!(seen(39), era());
    what_other_threads_do(&set);
    what_is_stopped(&set);
    // Of more than there is place for is known what all let through. (A place that another is about to
    // leave is waited for; on a busy machine that thread may come too late.)
    assert!((0..100).any(|_| wait_for_a_place() < MOST));
    for k in 100..200 {
        bring(k, false, &taken);
    }
    assert_eq!((set.get(), every()), (u64::MAX, u64::MAX));
    let stopped: Vec<_> = (0..512)
        .filter(|nr| is_stopped(&[*nr, 0, 0, 0, 0, 0, 0]))
        .collect();
    assert_eq!(stopped, Vec::from_iter((156..200).chain([300])));
}

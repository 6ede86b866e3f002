//! memcpy and its kin. The compiler calls them; libc's are interposed by sanitizers and would be
//! a libc call on the hook path. Hidden, so that nobody else is given ours.
//!
//! Starting `rep movsb` takes longer than copying a few structures, and longer still from cache
//! lines of another processor: below 1 KiB a loop is faster. From 4 KiB to 32 MiB `rep movsb` was
//! within 5 % of libc's where it was measured; a loop with AVX2 was no better, non-temporal stores
//! were slower.
//!
//! `memmove` of what does not overlap, or lies above where it goes, is `memcpy`. So `memcpy` reads
//! the last bytes of a length before it writes any, and goes upwards.

use core::arch::global_asm;

global_asm!(
    r#"
    .hidden memcpy
    .globl memcpy
    .type memcpy, @function
memcpy:
    .cfi_startproc
    mov rax, rdi
    cmp rdx, 16
    jb 4f
    cmp rdx, 32
    ja 2f
    movups xmm0, [rsi]
    movups xmm1, [rsi + rdx - 16]
    movups [rdi], xmm0
    movups [rdi + rdx - 16], xmm1
    ret
2:  cmp rdx, 64
    ja 3f
    movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movups xmm2, [rsi + rdx - 32]
    movups xmm3, [rsi + rdx - 16]
    movups [rdi], xmm0
    movups [rdi + 16], xmm1
    movups [rdi + rdx - 32], xmm2
    movups [rdi + rdx - 16], xmm3
    ret
3:  cmp rdx, 128
    ja 7f
    movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movups xmm2, [rsi + 32]
    movups xmm3, [rsi + 48]
    movups xmm4, [rsi + rdx - 64]
    movups xmm5, [rsi + rdx - 48]
    movups xmm6, [rsi + rdx - 32]
    movups xmm7, [rsi + rdx - 16]
    movups [rdi], xmm0
    movups [rdi + 16], xmm1
    movups [rdi + 32], xmm2
    movups [rdi + 48], xmm3
    movups [rdi + rdx - 64], xmm4
    movups [rdi + rdx - 48], xmm5
    movups [rdi + rdx - 32], xmm6
    movups [rdi + rdx - 16], xmm7
    ret
4:  cmp edx, 8
    jb 5f
    mov rcx, [rsi]
    mov r8, [rsi + rdx - 8]
    mov [rdi], rcx
    mov [rdi + rdx - 8], r8
    ret
5:  cmp edx, 4
    jb 6f
    mov ecx, [rsi]
    mov r8d, [rsi + rdx - 4]
    mov [rdi], ecx
    mov [rdi + rdx - 4], r8d
    ret
6:  test edx, edx
    jz 8f
    mov ecx, edx
    shr ecx
    movzx r8d, byte ptr [rsi]
    movzx r9d, byte ptr [rsi + rcx]
    movzx r10d, byte ptr [rsi + rdx - 1]
    mov [rdi], r8b
    mov [rdi + rcx], r9b
    mov [rdi + rdx - 1], r10b
    ret
7:  cmp rdx, 1024
    ja 9f
    movups xmm4, [rsi + rdx - 64]
    movups xmm5, [rsi + rdx - 48]
    movups xmm6, [rsi + rdx - 32]
    movups xmm7, [rsi + rdx - 16]
    lea rcx, [rdi + rdx - 64]
22: movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movups xmm2, [rsi + 32]
    movups xmm3, [rsi + 48]
    movups [rdi], xmm0
    movups [rdi + 16], xmm1
    movups [rdi + 32], xmm2
    movups [rdi + 48], xmm3
    add rsi, 64
    add rdi, 64
    cmp rdi, rcx
    jb 22b
    movups [rcx], xmm4
    movups [rcx + 16], xmm5
    movups [rcx + 32], xmm6
    movups [rcx + 48], xmm7
    ret
9:  mov rcx, rdx
    rep movsb
8:  ret
    .cfi_endproc
    .size memcpy, . - memcpy

    .hidden memmove
    .globl memmove
    .type memmove, @function
memmove:
    .cfi_startproc
    cmp rdx, 128
    jbe memcpy
    mov r8, rdi
    sub r8, rsi
    cmp r8, rdx
    jae memcpy
    mov rax, rdi
    mov rcx, rdx
    lea rdi, [rdi + rdx - 1]
    lea rsi, [rsi + rdx - 1]
    std
    rep movsb
    cld
    ret
    .cfi_endproc
    .size memmove, . - memmove

    .hidden memset
    .globl memset
    .type memset, @function
memset:
    .cfi_startproc
    mov rax, rdi
    movzx esi, sil
    cmp rdx, 16
    jb 3f
    cmp rdx, 128
    ja 4f
    mov rcx, 0x0101010101010101
    imul rsi, rcx
    movq xmm0, rsi
    punpcklqdq xmm0, xmm0
    lea rcx, [rdi + rdx - 16]
2:  movups [rdi], xmm0
    add rdi, 16
    cmp rdi, rcx
    jb 2b
    movups [rcx], xmm0
    ret
3:  test edx, edx
    jz 5f
    mov [rdi + rdx - 1], sil
    dec edx
    jnz 3b
    ret
4:  mov r8, rax
    mov eax, esi
    mov rcx, rdx
    rep stosb
    mov rax, r8
5:  ret
    .cfi_endproc
    .size memset, . - memset

    .hidden memcmp
    .globl memcmp
    .type memcmp, @function
    .hidden bcmp
    .globl bcmp
    .type bcmp, @function
memcmp:
bcmp:
    .cfi_startproc
    xor ecx, ecx
2:  cmp rcx, rdx
    je 3f
    movzx eax, byte ptr [rdi + rcx]
    movzx r8d, byte ptr [rsi + rcx]
    inc rcx
    sub eax, r8d
    je 2b
    ret
3:  xor eax, eax
    ret
    .cfi_endproc
    .size memcmp, . - memcmp

    .hidden strlen
    .globl strlen
    .type strlen, @function
strlen:
    .cfi_startproc
    mov rax, -1
2:  inc rax
    cmp byte ptr [rdi + rax], 0
    jne 2b
    ret
    .cfi_endproc
    .size strlen, . - strlen
"#
);

#[cfg(test)]
mod tests {
    /// Places of 2,300 bytes to copy from and to: apart, and on top of each other.
    const PLACES: [(usize, usize); 9] = [
        (0, 1100),
        (3, 1101),
        (500, 500),
        (500, 499),
        (500, 501),
        (500, 437),
        (500, 563),
        (700, 400),
        (400, 700),
    ];

    fn pattern() -> Vec<u8> {
        (0..2300u32).map(|n| (n * 7 + n / 256) as u8).collect()
    }

    #[test]
    fn what_overlaps_is_moved_whole() {
        for (from, to) in PLACES {
            for len in (0..1100).chain([1200]) {
                let (mut moved, mut expected) = (pattern(), pattern());
                // SAFETY: both lie within 2,300 bytes.
                unsafe {
                    core::ptr::copy(moved.as_ptr().add(from), moved.as_mut_ptr().add(to), len)
                };
                let source: Vec<u8> = pattern()[from..from + len].to_vec();
                for (place, byte) in expected[to..].iter_mut().zip(source) {
                    *place = byte;
                }
                assert!(moved == expected, "{len} bytes from {from} to {to}");
            }
        }
    }

    #[test]
    fn each_length_is_copied_and_no_more() {
        let source = pattern();
        for len in (0..1100).chain([2200]) {
            let mut copy = vec![0xee; 2300];
            // SAFETY: both have 2,300 bytes.
            unsafe {
                core::ptr::copy_nonoverlapping(
                    source.as_ptr().add(5),
                    copy.as_mut_ptr().add(9),
                    len,
                )
            };
            assert!(copy[9..9 + len] == source[5..5 + len], "{len} bytes");
            assert!(
                copy[..9].iter().chain(&copy[9 + len..]).all(|b| *b == 0xee),
                "{len} bytes"
            );
        }
    }
}

# function
    .intel_syntax noprefix
    .text
# The two bytes are part of a number.
    mov edx, 0x050f0509
    mov eax, 0x50f
    ret

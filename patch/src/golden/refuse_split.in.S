# function
    .intel_syntax noprefix
    .text
# Code outside the function (behind `function_end`) jumps between the two.
    mov rdx, [rbx + 24]
1:  mov eax, [rbx]
    syscall
    test eax, eax
    {disp32} js 2f
    ret
function_end:
2:  mov edx, 7
    {disp32} jmp 1b

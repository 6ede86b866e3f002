! Looks memory up, opts some out, and reads its own process as a peer's: regall run -- ./example
program example
    use regall
    implicit none
    interface
        integer(c_int) function getpid() bind(c)
            import :: c_int
        end function
    end interface
    integer(c_size_t), parameter :: n = 131072
    real(c_double), pointer :: buffer(:)
    real(c_double), target :: there(4)
    type(c_ptr) :: memory, peer
    type(regall_range) :: found
    type(regall_statistics) :: counters
    type(regall_done) :: done
    type(regall_segment) :: pieces(2), into(1)
    integer(c_int64_t) :: cookie

    print '(a,i0,a,i0)', 'version ', regall_version(), ' active ', regall_active()
    call must(regall_alloc(n * 8, memory), 'alloc')
    call c_f_pointer(memory, buffer, [n])
    buffer = 0
    buffer(1:4) = [1, 2, 3, 4]
    call must(regall_lookup(c_null_ptr, memory, n * 8, found), 'lookup')
    print '(a,l1)', 'registered: ', found%reason == REGALL_REGISTERED
    call must(regall_opt_out(memory, n * 8), 'opt_out')
    call must(regall_lookup(c_null_ptr, memory, n * 8, found), 'lookup')
    print '(a,l1)', 'opted out: ', found%reason == REGALL_OPTED_OUT
    call must(regall_opt_in(memory, n * 8), 'opt_in')
    counters%size = c_sizeof(counters)
    call must(regall_stats(counters), 'stats')
    print '(a,l1)', 'counters: ', counters%bytes_registered > 0 .and. counters%mappings > 0

    call must(regall_peer_open(getpid(), 0_c_int64_t, 0, peer), 'peer_open')
    call must(regall_get(peer, c_loc(there), regall_address(memory), 32_c_size_t, done), 'get')
    print '(a,i0,4f4.1)', 'get: ', done%bytes, there
    call must(regall_peer_close(peer), 'peer_close')

    pieces(1) = regall_segment(regall_address(memory) + 16, 16)
    pieces(2) = regall_segment(regall_address(memory), 16)
    call must(regall_region_create(pieces, 2_c_size_t, REGALL_MAY_READ, 0, cookie), 'region_create')
    into(1) = regall_segment(regall_address(c_loc(there)), 32)
    call must(regall_region_read(cookie, 0_c_int64_t, into, 1_c_size_t, done), 'region_read')
    print '(a,i0,4f4.1)', 'region: ', done%bytes, there
    call must(regall_region_destroy(cookie), 'region_destroy')
    call must(regall_free(memory, n * 8), 'free')
contains
    subroutine must(error, what)
        integer(c_int), intent(in) :: error
        character(*), intent(in) :: what
        if (error < 0) then
            print '(a,a,i0)', what, ': ', error
            error stop
        end if
    end subroutine
end program

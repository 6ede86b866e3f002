! What a Fortran program asks of libregall.so: include/regall.h by ISO_C_BINDING.
!
!     use regall
!     type(regall_range) :: found
!     ierr = regall_lookup(c_null_ptr, c_loc(buffer), c_sizeof(buffer), found)
!
! Compile this file with the program and link with -lregall. Every function returns 0 (or what
! regall.h says) or a negative errno. Unsigned numbers of C are the signed ones of their size.
! A buffer has to be a target, or c_loc can't be taken.
module regall
    use, intrinsic :: iso_c_binding
    implicit none
    public

    ! regall_range%reason
    enum, bind(c)
        enumerator :: REGALL_REGISTERED = 0, REGALL_NO_ACCESS = 1, REGALL_KERNEL = 2, &
            REGALL_DEVICE = 3, REGALL_SHIM = 4, REGALL_OPTED_OUT = 5, REGALL_SCOPE = 6, &
            REGALL_LIMIT = 7, REGALL_INHERITED = 8, REGALL_OFF = 9, REGALL_REFUSED = 10, &
            REGALL_UNTOUCHED = 11, &
            REGALL_MANAGED = 12, REGALL_ON_REQUEST = 13, REGALL_CACHE = 15
    end enum

    ! prot and flags of regall_region_create. Fortran knows no case: REGALL_REGION_READ would be
    ! the function.
    integer(c_int), parameter :: REGALL_MAY_READ = 1, REGALL_MAY_WRITE = 2
    integer(c_int), parameter :: REGALL_REGION_SINGLE_USE = 1, REGALL_REGION_NOTIFY = 4

    type, bind(c) :: regall_range
        integer(c_int64_t) :: start, end, id
        integer(c_int32_t) :: prot, held, reason, error, lkey, rkey
    end type

    ! Set size to c_sizeof of it before the call.
    type, bind(c) :: regall_statistics
        integer(c_int64_t) :: size, mappings, bytes_mapped, bytes_registered, bytes_pinned, &
            budget, events, pins, bytes_pinned_total, shim_bytes, resyncs, sites_patched, &
            sites_refused
    end type

    type, bind(c) :: regall_segment
        integer(c_int64_t) :: addr, len
    end type

    type, bind(c) :: regall_process
        integer(c_int32_t) :: pid, reserved
        integer(c_int64_t) :: start_time
    end type

    type, bind(c) :: regall_done
        integer(c_int64_t) :: bytes, generation
        integer(c_int32_t) :: mechanism, reserved
    end type

    interface
        integer(c_int) function regall_version() bind(c)
            import
        end function

        integer(c_int) function regall_active() bind(c)
            import
        end function

        integer(c_int) function regall_audit() bind(c)
            import
        end function

        integer(c_int) function regall_lookup(pd, addr, len, out) bind(c)
            import
            type(c_ptr), value :: pd, addr
            integer(c_size_t), value :: len
            type(regall_range), intent(out) :: out
        end function

        integer(c_int) function regall_opt_out(addr, len) bind(c)
            import
            type(c_ptr), value :: addr
            integer(c_size_t), value :: len
        end function

        integer(c_int) function regall_opt_in(addr, len) bind(c)
            import
            type(c_ptr), value :: addr
            integer(c_size_t), value :: len
        end function

        ! regall_alloc and its kin: c_f_pointer makes an array of it.
        integer(c_int) function regall_alloc(size, out) bind(c)
            import
            integer(c_size_t), value :: size
            type(c_ptr), intent(out) :: out
        end function

        integer(c_int) function regall_alloc_unregistered(size, out) bind(c)
            import
            integer(c_size_t), value :: size
            type(c_ptr), intent(out) :: out
        end function

        integer(c_int) function regall_alloc_shared(size, out) bind(c)
            import
            integer(c_size_t), value :: size
            type(c_ptr), intent(out) :: out
        end function

        integer(c_int) function regall_free(addr, size) bind(c)
            import
            type(c_ptr), value :: addr
            integer(c_size_t), value :: size
        end function

        integer(c_int) function regall_stats(out) bind(c)
            import
            type(regall_statistics), intent(inout) :: out
        end function

        integer(c_int) function regall_peers(out, room) bind(c)
            import
            type(regall_process), intent(out) :: out(*)
            integer(c_size_t), value :: room
        end function

        integer(c_int) function regall_peer_open(pid, start_time, flags, out) bind(c)
            import
            integer(c_int), value :: pid, flags
            integer(c_int64_t), value :: start_time
            type(c_ptr), intent(out) :: out
        end function

        integer(c_int) function regall_peer_close(peer) bind(c)
            import
            type(c_ptr), value :: peer
        end function

        integer(c_int) function regall_peer_check(peer) bind(c)
            import
            type(c_ptr), value :: peer
        end function

        integer(c_int) function regall_get(peer, to, from, len, done) bind(c)
            import
            type(c_ptr), value :: peer, to
            integer(c_int64_t), value :: from
            integer(c_size_t), value :: len
            type(regall_done), intent(out) :: done
        end function

        integer(c_int) function regall_put(peer, from, to, len, done) bind(c)
            import
            type(c_ptr), value :: peer, from
            integer(c_int64_t), value :: to
            integer(c_size_t), value :: len
            type(regall_done), intent(out) :: done
        end function

        integer(c_int) function regall_region_create(segments, count, prot, flags, cookie) bind(c)
            import
            type(regall_segment), intent(in) :: segments(*)
            integer(c_size_t), value :: count
            integer(c_int), value :: prot, flags
            integer(c_int64_t), intent(out) :: cookie
        end function

        integer(c_int) function regall_region_destroy(cookie) bind(c)
            import
            integer(c_int64_t), value :: cookie
        end function

        integer(c_int) function regall_region_read(cookie, offset, to, tos, done) bind(c)
            import
            integer(c_int64_t), value :: cookie, offset
            type(regall_segment), intent(in) :: to(*)
            integer(c_size_t), value :: tos
            type(regall_done), intent(out) :: done
        end function

        integer(c_int) function regall_region_write(cookie, offset, from, froms, done) bind(c)
            import
            integer(c_int64_t), value :: cookie, offset
            type(regall_segment), intent(in) :: from(*)
            integer(c_size_t), value :: froms
            type(regall_done), intent(out) :: done
        end function
    end interface

contains
    ! The address of memory, as segments and peers have it.
    integer(c_int64_t) function regall_address(of)
        type(c_ptr), intent(in) :: of
        regall_address = transfer(of, regall_address)
    end function
end module

/* Stands in for libibverbs, for ../reloaded.c: the real one is never unloaded once a device was opened. */
static char mark;

/* What it says tells where the library lies. */
void *ibv_alloc_pd(void *context)
{
	(void)context;
	return &mark;
}

/* What else the shim looks for in it, and waits for: nobody calls these. */
#define NOT_CALLED(name)    \
	void name(void);    \
	void name(void)     \
	{                   \
		__builtin_trap(); \
	}
NOT_CALLED(ibv_reg_mr)
NOT_CALLED(ibv_reg_mr_iova)
NOT_CALLED(ibv_reg_mr_iova2)
NOT_CALLED(ibv_dereg_mr)
NOT_CALLED(ibv_rereg_mr)
NOT_CALLED(ibv_dealloc_pd)
NOT_CALLED(ibv_import_device)
NOT_CALLED(ibv_import_pd)
NOT_CALLED(ibv_unimport_pd)
NOT_CALLED(ibv_close_device)

/* oneDNN primitives and matrix products. */
#include "gpu/cpu_internal.h"

int cpu_dnnl_error(const Op *op, const char *what, dnnl_status_t status) {
    static const char *const names[] = {"success",       "out of memory", "invalid arguments",
                                        "unimplemented", "iterator ends", "runtime error",
                                        "not required"};
    const char *name = (unsigned)status < sizeof names / sizeof names[0] ? names[status] : "?";
    int code = status == dnnl_out_of_memory   ? ERR_MEMORY
               : status == dnnl_unimplemented ? ERR_UNSUPPORTED
                                              : ERR_INTERNAL;
    return err_set(code, "layer '%s': oneDNN %s: %s", op != NULL ? op->layer->name : "-", what,
                   name);
}

int cpu_prim_open(const Op *op, dnnl_primitive_desc_t desc, CpuPrim *out_prim) {
    memset(out_prim, 0, sizeof *out_prim);
    dnnl_status_t status = dnnl_primitive_create(&out_prim->prim, desc);
    if (status != dnnl_success) {
        dnnl_primitive_desc_destroy(desc);
        out_prim->prim = NULL;
        return cpu_dnnl_error(op, "primitive", status);
    }
    out_prim->desc = desc;
    const dnnl_memory_desc_t *scratch =
        dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    out_prim->scratch_bytes = scratch != NULL ? dnnl_memory_desc_get_size(scratch) : 0;
    if (out_prim->scratch_bytes > 0)
        return cpu_prim_arg(out_prim, op, DNNL_ARG_SCRATCHPAD, scratch);
    return 0;
}

void cpu_prim_close(CpuPrim *prim) {
    for (int i = 0; i < prim->n_args; i++)
        dnnl_memory_destroy(prim->args[i].memory);
    if (prim->prim != NULL)
        dnnl_primitive_destroy(prim->prim);
    if (prim->desc != NULL)
        dnnl_primitive_desc_destroy(prim->desc);
    memset(prim, 0, sizeof *prim);
}

int cpu_prim_arg(CpuPrim *prim, const Op *op, int arg, const dnnl_memory_desc_t *md) {
    if (prim->n_args == CPU_PRIM_ARGS)
        return err_set(ERR_INTERNAL, "layer '%s': too many arguments", op->layer->name);
    dnnl_exec_arg_t *slot = &prim->args[prim->n_args];
    dnnl_status_t status =
        dnnl_memory_create(&slot->memory, md, op->device->engine, DNNL_MEMORY_NONE);
    if (status != dnnl_success)
        return cpu_dnnl_error(op, "memory", status);
    slot->arg = arg;
    prim->n_args++;
    return 0;
}

int cpu_prim_set(CpuPrim *prim, int arg, const void *data) {
    for (int i = 0; i < prim->n_args; i++)
        if (prim->args[i].arg == arg)
            return dnnl_memory_set_data_handle(prim->args[i].memory, (void *)(uintptr_t)data) ==
                           dnnl_success
                       ? 0
                       : err_set(ERR_INTERNAL, "oneDNN refused a data pointer");
    return err_set(ERR_INTERNAL, "oneDNN primitive without argument %d", arg);
}

int cpu_prim_run(CpuPrim *prim, const Op *op, void *scratch) {
    if (prim->scratch_bytes > 0)
        TRY(cpu_prim_set(prim, DNNL_ARG_SCRATCHPAD, scratch));
    dnnl_status_t status =
        dnnl_primitive_execute(prim->prim, op->device->stream, prim->n_args, prim->args);
    if (status == dnnl_success)
        status = dnnl_stream_wait(op->device->stream);
    return status == dnnl_success ? 0 : cpu_dnnl_error(op, "execution", status);
}

int cpu_reorder_open(const Op *op, const dnnl_memory_desc_t *from, const dnnl_memory_desc_t *to,
                     CpuPrim *out_prim) {
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t desc = NULL;
    dnnl_engine_t engine = op->device->engine;
    dnnl_status_t status = dnnl_primitive_attr_create(&attr);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (status == dnnl_success)
        status = dnnl_reorder_primitive_desc_create(&desc, from, engine, to, engine, attr);
    if (attr != NULL)
        dnnl_primitive_attr_destroy(attr);
    if (status != dnnl_success)
        return cpu_dnnl_error(op, "reorder", status);
    int rc = cpu_prim_open(op, desc, out_prim);
    if (rc >= 0)
        rc = cpu_prim_arg(out_prim, op, DNNL_ARG_FROM, from);
    if (rc >= 0)
        rc = cpu_prim_arg(out_prim, op, DNNL_ARG_TO, to);
    if (rc < 0)
        cpu_prim_close(out_prim);
    return rc;
}

int cpu_reorder_run(CpuPrim *prim, const Op *op, const void *from, void *to, void *scratch) {
    TRY(cpu_prim_set(prim, DNNL_ARG_FROM, from));
    TRY(cpu_prim_set(prim, DNNL_ARG_TO, to));
    return cpu_prim_run(prim, op, scratch);
}

bool cpu_prim_is_reference(const_dnnl_primitive_desc_t desc) {
    const char *info = NULL;
    if (dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, (void *)&info) !=
            dnnl_success ||
        info == NULL)
        return false;
    return strncmp(info, "ref", 3) == 0;
}

int cpu_gemm(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha,
             const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
             int64_t ldc) {
    dnnl_status_t status =
        dnnl_sgemm(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    return status == dnnl_success ? 0 : cpu_dnnl_error(NULL, "matrix product", status);
}

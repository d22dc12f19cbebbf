#include "gpu/device.h"

#include <string.h>

#include "core/err.h"
#include "gpu/kernels.h"

int device_find(const char *name, const DeviceOps **out_ops) {
    if (strcmp(name, "cpu") == 0) {
        *out_ops = cpu_device_ops();
        return 0;
    }
    return err_set(ERR_UNSUPPORTED, "device '%s' is not known here (there is: cpu)", name);
}

size_t device_align(size_t bytes) {
    return (bytes + 63) & ~(size_t)63;
}

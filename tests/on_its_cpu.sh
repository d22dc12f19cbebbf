#!/bin/sh
# Run a test on the processor that ctest gives it (--resource-spec-file, as ./check does; without
# one, on all): none depends on what runs beside it, and wake-ups that stay on one cost half.
# Usage: on_its_cpu.sh COMMAND...
case ${CTEST_RESOURCE_GROUP_0_CPUS:-} in
id:*) cpu=${CTEST_RESOURCE_GROUP_0_CPUS#id:} && exec taskset -c "${cpu%%,*}" "$@" ;;
esac
exec "$@"

#!/bin/sh
# Run a test on the processor that ctest gives it (--resource-spec-file, as ./check does; without
# one, on all): none depends on what runs beside it, and threads that share one cost a third less.
# Usage: on_its_cpu.sh COMMAND...
case ${CTEST_RESOURCE_GROUP_0_CPUS:-} in
id:*) cpu=${CTEST_RESOURCE_GROUP_0_CPUS#id:} && exec taskset -c "${cpu%%,*}" "$@" ;;
esac
exec "$@"

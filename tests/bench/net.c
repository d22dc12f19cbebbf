#include "tests/bench/net.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"

enum { START_MS = 20000, RETRY_MS = 50 };

static int shell(const char *format, ...) {
    char command[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    return system(command) == 0 ? 0 : err_set(ERR_IO, "failed (it needs root): %s", command);
}

const char *net_address(int host, char out[NET_ADDRESS_BYTES]) {
    snprintf(out, NET_ADDRESS_BYTES, "10.99.0.%d", host < 0 ? 1 : 10 + host);
    return out;
}

static int shape(const char *space, const char *device, int rate_mb) {
    if (rate_mb == 0)
        return 0;
    return shell("ip netns exec %s tc qdisc add dev %s root tbf rate %dmbps burst 256kb limit 1mb",
                 space, device, rate_mb);
}

static int add_host(const Net *net, int host, int rate_mb) {
    char space[48];
    char device[16];
    char address[NET_ADDRESS_BYTES];
    snprintf(space, sizeof space, "%s-%d", net->name, host);
    snprintf(device, sizeof device, "h%d", host);
    TRY(shell("ip netns add %s && ip netns exec %s ip link set lo up", space, space));
    TRY(shell("ip -n %s link add %s type veth peer name eth0 netns %s", net->name, device, space));
    TRY(shell("ip -n %s link set %s master br0 up", net->name, device));
    TRY(shell("ip -n %s addr add %s/24 dev eth0 && ip -n %s link set eth0 up", space,
              net_address(host, address), space));
    TRY(shape(space, "eth0", rate_mb));
    return shape(net->name, device, rate_mb);
}

static void remove_spaces(const Net *net) {
    for (int i = 0; i < net->n_hosts; i++)
        (void)shell("ip netns del %s-%d 2>/dev/null", net->name, i);
    (void)shell("ip netns del %s 2>/dev/null", net->name);
}

/* A process that removes the namespaces when nobody holds the pipe's other end any more. It is in
 * a session of its own, so that a key that ends the program does not end it first. */
static int start_remover(Net *net) {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) < 0)
        return err_set(ERR_IO, "a pipe for the benchmark's networks");
    net->alive_fd = fds[1];
    net->remover = fork();
    if (net->remover == 0) {
        char byte;
        close(fds[1]);
        setsid();
        while (read(fds[0], &byte, 1) < 0 && errno == EINTR) {
        }
        remove_spaces(net);
        _exit(0);
    }
    close(fds[0]);
    return net->remover > 0 ? 0 : err_set(ERR_MEMORY, "a process that removes networks");
}

int net_open(const int *rates_mb, int n_hosts, Net *out_net) {
    Net net = {.n_hosts = n_hosts};
    snprintf(net.name, sizeof net.name, "fpbench-%d", (int)getpid());
    TRY(start_remover(&net));
    *out_net = net;
    TRY(shell("ip netns add %s && ip -n %s link add br0 type bridge && ip -n %s addr add "
              "10.99.0.1/24 dev br0 && ip -n %s link set br0 up && ip -n %s link set lo up",
              net.name, net.name, net.name, net.name, net.name));
    for (int i = 0; i < n_hosts; i++)
        TRY(add_host(&net, i, rates_mb[i]));
    return 0;
}

void net_close(Net *net) {
    remove_spaces(net);
    close(net->alive_fd);
    waitpid(net->remover, NULL, 0);
}

int net_traffic(int host, int64_t *out_to, int64_t *out_from) {
    char line[512];
    char name[16];
    bool found = false;
    FILE *file = fopen("/proc/self/net/dev", "re");
    if (!file)
        return err_set(ERR_IO, "no /proc/self/net/dev");
    snprintf(name, sizeof name, "h%d:", host);
    while (!found && fgets(line, sizeof line, file)) {
        const char *at = line + strspn(line, " ");
        long long received = 0;
        long long sent = 0;
        found = strncmp(at, name, strlen(name)) == 0 &&
                sscanf(at + strlen(name), "%lld %*d %*d %*d %*d %*d %*d %*d %lld", &received,
                       &sent) == 2;
        *out_to = sent;
        *out_from = received;
    }
    fclose(file);
    return found ? 0 : err_set(ERR_NOT_FOUND, "no network device '%s'", name);
}

int net_enter(const Net *net, int host) {
    char path[96];
    if (host < 0)
        snprintf(path, sizeof path, "/run/netns/%s", net->name);
    else
        snprintf(path, sizeof path, "/run/netns/%s-%d", net->name, host);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int rc = fd >= 0 && setns(fd, CLONE_NEWNET) == 0 ? 0 : err_set(ERR_IO, "entering '%s'", path);
    if (fd >= 0)
        close(fd);
    return rc;
}

int net_start_redis(const Net *net, int host, int port, const char *module, pid_t *out_pid) {
    char port_text[16];
    snprintf(port_text, sizeof port_text, "%d", port);
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid < 0)
        return err_set(ERR_MEMORY, "a process for redis-server");
    if (pid == 0) {
        int null_fd = open("/dev/null", O_RDWR);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent || (net && net_enter(net, host) < 0) || null_fd < 0)
            _exit(1);
        dup2(null_fd, 0);
        dup2(null_fd, 1);
        execlp("redis-server", "redis-server", "--port", port_text, "--bind",
               net ? "0.0.0.0" : "127.0.0.1", "--protected-mode", "no", "--save", "",
               "--appendonly", "no", module ? "--loadmodule" : "--loglevel",
               module ? module : "warning", (char *)NULL);
        _exit(1);
    }
    *out_pid = pid;
    return 0;
}

int net_await_relay(const char *url, Relay **out_relay) {
    const int64_t deadline_ns = clock_deadline_ms(START_MS);
    int rc = relay_open(url, out_relay);
    while (rc == ERR_UNREACHABLE && clock_now_ns() < deadline_ns) {
        clock_sleep_until(clock_deadline_ms(RETRY_MS));
        rc = relay_open(url, out_relay);
    }
    return rc;
}

#include "tests/support/redis_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "tests/support/loopback.h"
#include "tests/support/temp.h"

enum { START_TRIES = 5, READY_MS = 10000 };

static int free_port(void) {
    int port = -1;
    int fd = loopback_listen(0, &port);
    if (fd >= 0)
        close(fd);
    return port;
}

static bool listens(int port) {
    struct sockaddr_in address = loopback_address(port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool yes = connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
    close(fd);
    return yes;
}

static void run_server(const RedisServerProcess *server, pid_t parent) {
    char port[16];
    const char *args[REDIS_SERVER_ARGS + 16] = {"redis-server", "--port",      port, "--bind",
                                                "127.0.0.1",    "--save",      "",   "--dir",
                                                server->folder, "--daemonize", "no"};
    int n = 11;
    snprintf(port, sizeof port, "%d", server->port);
    for (int i = 0; server->args[i]; i++)
        args[n++] = strcmp(server->args[i], "PORT") == 0 ? port : server->args[i];
    args[n] = NULL;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    char log[96];
    snprintf(log, sizeof log, "%s/log", server->folder);
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(fd, 1);
    dup2(fd, 2);
    execvp("redis-server", (char *const *)args);
    _exit(127);
}

int redis_server_again(RedisServerProcess *server) {
    int status = 0;
    pid_t parent = getpid();
    server->pid = fork();
    if (server->pid < 0)
        return err_errno(ERR_IO, errno, "starting redis-server");
    if (server->pid == 0)
        run_server(server, parent);
    for (int64_t end_ns = clock_deadline_ms(READY_MS); clock_now_ns() < end_ns;) {
        if (waitpid(server->pid, &status, WNOHANG) == server->pid) {
            server->pid = 0;
            return WIFEXITED(status) && WEXITSTATUS(status) == 127
                       ? err_set(ERR_UNSUPPORTED, "there is no redis-server here")
                       : err_set(ERR_IO, "redis-server ended at once (%s/log)", server->folder);
        }
        if (listens(server->port))
            return 0;
        clock_sleep_until(clock_deadline_ms(5));
    }
    return err_set(ERR_TIMEOUT, "redis-server does not listen on port %d", server->port);
}

int redis_server_start(RedisServerProcess *server, const char *const *more_args) {
    int rc = ERR_IO;
    *server = (RedisServerProcess){0};
    for (int i = 0; more_args && more_args[i] && i + 1 < REDIS_SERVER_ARGS; i++)
        server->args[i] = more_args[i];
    if (temp_make(server->folder, sizeof server->folder, "test") < 0)
        return err_set(ERR_IO, "no folder for a Redis server");
    for (int tries = 0; rc < 0 && tries < START_TRIES;
         tries++) { /* a port may be taken meanwhile */
        server->port = free_port();
        rc = redis_server_again(server);
        if (rc == ERR_UNSUPPORTED)
            break;
    }
    if (rc < 0)
        temp_remove(server->folder);
    return rc;
}

void redis_server_kill(RedisServerProcess *server) {
    if (server->pid > 0) {
        kill(server->pid, SIGKILL);
        waitpid(server->pid, NULL, 0);
    }
    server->pid = 0;
}

void redis_server_stop(RedisServerProcess *server) {
    redis_server_kill(server);
    temp_remove(server->folder);
}

/* Read a line of an answer, without its end. */
static bool read_line(int fd, char *line, size_t line_bytes) {
    size_t n = 0;
    for (char c = 0; n + 1 < line_bytes && read(fd, &c, 1) == 1; line[n++] = c) {
        if (c == '\n') {
            line[n > 0 ? n - 1 : 0] = '\0';
            return true;
        }
    }
    return false;
}

int64_t redis_server_ask(int port, const char *lines) {
    struct sockaddr_in address = loopback_address(port);
    struct timeval patience = {.tv_sec = 20};
    char line[512] = "-no connection";
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    bool fine = connect(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
                send(fd, lines, strlen(lines), MSG_NOSIGNAL) > 0 &&
                send(fd, "\r\n", 2, MSG_NOSIGNAL) > 0 && read_line(fd, line, sizeof line);
    for (const char *at = lines; fine && (at = strstr(at, "\r\n")); at += 2)
        fine = read_line(fd, line, sizeof line);
    close(fd);
    if (fine && line[0] == ':')
        return strtoll(line + 1, NULL, 10);
    if (fine && line[0] != '-')
        return 0;
    fprintf(stderr, "asking Redis at port %d: %s: %s\n", port, lines, line);
    return -1;
}

/* Made once for all tests of a build, while they are fresh: one of them is valid for five days. */
int redis_server_certificates(const char *folder) {
    static const char text[] =
        "set -e; exec 2>/dev/null; to=$(realpath '%s'); mkdir -p '%s'; cd '%s'; exec 9>lock; flock "
        "9; "
        "key() { openssl ecparam -name prime256v1 -genkey -noout -out \"$1\".key; }; "
        "issue() { key \"$1\"; openssl req -new -key \"$1\".key -subj \"/CN=$1\" | "
        "openssl x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -days ${2:-3650} "
        "-extfile \"$1\".ext -out \"$1\".crt; }; "
        "if [ -z \"$(find made -mmin -600)\" ]; then "
        "key ca; openssl req -x509 -new -key ca.key -subj /CN=ca -days 3650 -out ca.crt; "
        "echo subjectAltName=DNS:localhost,IP:127.0.0.1 >server.ext; "
        "echo subjectAltName=DNS:elsewhere.example >other.ext; "
        "echo subjectAltName=DNS:client >client.ext; cp server.ext soon.ext; "
        "issue server; issue other; issue client; issue soon 5; "
        "test -s soon.crt; touch made; fi; cp *.crt *.key \"$to\"";
    static const char made[] = FUNCPIPE_BINARY_DIR "/certificates";
    char command[2048];
    int n = snprintf(command, sizeof command, text, folder, made, made);
    return n < (int)sizeof command && system(command) == 0
               ? 0
               : err_set(ERR_UNSUPPORTED, "openssl made no certificates");
}

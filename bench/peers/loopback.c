/* Preloaded into RocketMQ's servers, whose proxy and replication port know no address to listen on: a socket
   that would listen on every address listens on the loopback alone.

   gcc -shared -fPIC -O2 -o loopback.so loopback.c -ldl */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

typedef int (*bind_function)(int, const struct sockaddr *, socklen_t);

static int is_any(const struct sockaddr *address, socklen_t size)
{
    if (address && address->sa_family == AF_INET && size >= sizeof(struct sockaddr_in))
        return ((const struct sockaddr_in *)address)->sin_addr.s_addr == htonl(INADDR_ANY);
    if (address && address->sa_family == AF_INET6 && size >= sizeof(struct sockaddr_in6))
        return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)address)->sin6_addr);
    return 0;
}

int bind(int socket, const struct sockaddr *address, socklen_t size)
{
    bind_function real = (bind_function)dlsym(RTLD_NEXT, "bind");
    struct sockaddr_storage narrowed;
    if (!is_any(address, size) || size > sizeof narrowed)
        return real(socket, address, size);
    memcpy(&narrowed, address, size);
    if (address->sa_family == AF_INET)
        ((struct sockaddr_in *)&narrowed)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    else /* an IPv6 socket of Java serves IPv4, too: by the mapped address */
        inet_pton(AF_INET6, "::ffff:127.0.0.1", &((struct sockaddr_in6 *)&narrowed)->sin6_addr);
    return real(socket, (const struct sockaddr *)&narrowed, size);
}

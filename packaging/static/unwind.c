/* What GCC's unwinder (libgcc_eh.a as Debian builds it, for glibc) misses beside musl.
 *
 * 1. Since GCC 12 it finds a function's unwind table through glibc's _dl_find_object. Here the same answer
 *    is given by walking the program headers, of which a static binary has one set.
 * 2. It refers to the pthread functions weakly, and a weak reference alone takes nothing out of libc.a: the
 *    first panic would jump to address 0. Naming them here brings them in.
 */
#define _GNU_SOURCE
#include <link.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

/* glibc's struct dl_find_object, for x86_64. */
struct found {
    unsigned long long flags;
    void *start;
    void *end;
    struct link_map *map;
    void *eh_frame_hdr;
    unsigned long long reserved[7];
};

struct search {
    uintptr_t address;
    struct found *found;
};

static int look(struct dl_phdr_info *object, size_t size, void *data)
{
    struct search *search = data;
    const ElfW(Phdr) *code = NULL;
    const ElfW(Phdr) *table = NULL;
    (void)size;
    for (size_t n = 0; n < object->dlpi_phnum; n++) {
        const ElfW(Phdr) *header = object->dlpi_phdr + n;
        uintptr_t start = object->dlpi_addr + header->p_vaddr;
        if (header->p_type == PT_GNU_EH_FRAME)
            table = header;
        else if (header->p_type == PT_LOAD && search->address >= start && search->address - start < header->p_memsz)
            code = header;
    }
    if (code == NULL || table == NULL)
        return 0;
    *search->found = (struct found){
        .start = (void *)(object->dlpi_addr + code->p_vaddr),
        .end = (void *)(object->dlpi_addr + code->p_vaddr + code->p_memsz),
        .eh_frame_hdr = (void *)(object->dlpi_addr + table->p_vaddr),
    };
    return 1;
}

int _dl_find_object(void *address, void *result);
int _dl_find_object(void *address, void *result)
{
    struct search search = {(uintptr_t)address, result};
    return dl_iterate_phdr(look, &search) == 1 ? 0 : -1;
}

void *const unwind_needs[] __attribute__((used)) = {
    (void *)pthread_once,        (void *)pthread_key_create, (void *)pthread_getspecific,
    (void *)pthread_setspecific, (void *)pthread_mutex_lock, (void *)pthread_mutex_unlock,
};

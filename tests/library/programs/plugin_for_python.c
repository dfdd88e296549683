// An extension module for Python with 6 MiB of code. It declares the few needed parts of Python's stable interface
// itself, so that no header of Python is needed.
#include "plugin.c"

typedef struct object Object;
struct method {
    const char *name;
    Object *(*function)(Object *, Object *);
    int flags;
    const char *doc;
};
// PyModuleDef_Base and PyModuleDef (Python's Include/moduleobject.h).
struct module {
    struct {
        intptr_t references;
        void *type;
        Object *(*init)(void);
        intptr_t index;
        Object *copy;
    } base;
    const char *name, *doc;
    intptr_t size;
    const struct method *methods;
    void *slots, *traverse, *clear, *free;
};
#define METH_NOARGS 4
#define PYTHON_API_VERSION 1013
extern Object *PyModule_Create2(struct module *, int);
extern Object *PyLong_FromUnsignedLong(unsigned long);

static Object *sum(Object *self, Object *nothing)
{
    (void)self, (void)nothing;
    unsigned long total = 0;
    for (int index = 0; index < 1536; index++) total += plugin_call(index);
    return PyLong_FromUnsignedLong(total);
}
static Object *start(Object *self, Object *nothing)
{
    (void)self, (void)nothing;
    return PyLong_FromUnsignedLong((uintptr_t)plugin_code);
}
static const struct method methods[] = { { "sum", sum, METH_NOARGS, 0 }, { "start", start, METH_NOARGS, 0 }, { 0 } };
static struct module definition = { { 1, 0, 0, 0, 0 }, "large", 0, -1, methods, 0, 0, 0, 0 };

Object *PyInit_large(void) { return PyModule_Create2(&definition, PYTHON_API_VERSION); }

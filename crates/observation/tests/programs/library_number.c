// A library for on_anonymous_memory.c to lose the file of.
int library_state = 40;

int library_number(void) {
    return library_state + 2;
}

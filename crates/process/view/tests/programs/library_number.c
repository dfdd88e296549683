// A library for on_anonymous_memory.c to lose the file of.
int library_state = 40;

static __attribute__((noinline)) int hidden_step(int number) {
    return number + library_state;
}

int library_number(void) {
    return hidden_step(2);
}

// An LMDB database of 24 MB in the file of its second argument.
//
//   reads_lmdb fill FILE      writes it, in one transaction
//   reads_lmdb change FILE    adds one to one word
//   reads_lmdb read FILE      prints the sum of its words, and again after each line of input
//
// build: gcc -g -O1 -Wall -o $OUT $SRC -llmdb
#include <lmdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RECORDS = 6000, WORDS = 500, CHANGED = 3456 };
static const size_t ROOM = 64 << 20;
static MDB_env *environment;

static void need(int error, const char *what) {
    if (!error) return;
    fprintf(stderr, "%s: %s\n", what, mdb_strerror(error));
    exit(3);
}

static MDB_txn *begin(unsigned flags, MDB_dbi *database) {
    MDB_txn *transaction;
    need(mdb_txn_begin(environment, NULL, flags, &transaction), "mdb_txn_begin");
    need(mdb_dbi_open(transaction, NULL, MDB_INTEGERKEY, database), "mdb_dbi_open");
    return transaction;
}

static void put(MDB_txn *transaction, MDB_dbi database, unsigned number, uint64_t *words) {
    MDB_val key = {sizeof number, &number}, value = {WORDS * sizeof *words, words};
    need(mdb_put(transaction, database, &key, &value, 0), "mdb_put");
}

static void fill(void) {
    MDB_dbi database;
    MDB_txn *transaction = begin(0, &database);
    uint64_t words[WORDS];
    for (unsigned number = 0; number < RECORDS; number++) {
        for (unsigned at = 0; at < WORDS; at++) words[at] = number * 31ull + at;
        put(transaction, database, number, words);
    }
    need(mdb_txn_commit(transaction), "mdb_txn_commit");
    need(mdb_env_sync(environment, 1), "mdb_env_sync");
}

static void change(void) {
    MDB_dbi database;
    MDB_txn *transaction = begin(0, &database);
    unsigned number = CHANGED;
    MDB_val key = {sizeof number, &number}, value;
    need(mdb_get(transaction, database, &key, &value), "mdb_get");
    uint64_t words[WORDS];
    memcpy(words, value.mv_data, sizeof words);
    words[7]++;
    put(transaction, database, number, words);
    need(mdb_txn_commit(transaction), "mdb_txn_commit");
}

static void print_sum(void) {
    MDB_dbi database;
    MDB_txn *transaction = begin(MDB_RDONLY, &database);
    uint64_t sum = 0, word;
    for (unsigned number = 0; number < RECORDS; number++) {
        MDB_val key = {sizeof number, &number}, value;
        need(mdb_get(transaction, database, &key, &value), "mdb_get");
        for (size_t at = 0; at + sizeof word <= value.mv_size; at += sizeof word) {
            memcpy(&word, (char *)value.mv_data + at, sizeof word);
            sum += word;
        }
    }
    mdb_txn_abort(transaction);
    printf("sum %llu\n", (unsigned long long)sum);
    fflush(stdout);
}

int main(int count, char **words) {
    if (count != 3) return 2;
    need(mdb_env_create(&environment), "mdb_env_create");
    need(mdb_env_set_mapsize(environment, ROOM), "mdb_env_set_mapsize");
    int reads = !strcmp(words[1], "read");
    need(mdb_env_open(environment, words[2], MDB_NOSUBDIR | (reads ? MDB_RDONLY : 0), 0644), "mdb_env_open");
    if (!strcmp(words[1], "fill")) fill();
    if (!strcmp(words[1], "change")) change();
    if (reads) {
        char line[80];
        do print_sum();
        while (fgets(line, sizeof line, stdin));
    }
    mdb_env_close(environment);
    return 0;
}

"""A dictionary of half a million strings, and look-ups of all in another order."""
count = 500_000
table = {number * 7919: "text" + str(number) for number in range(count)}
print(sum(len(table[number * 104729 % count * 7919]) for number in range(2 * count)))

-- `lines` does not exist while no job of a queue has ever had a name. It does for a call that brings a fair word, because only one job of it
-- may be in a band. Needs begin, and comes before words.
for i = named and 1 or #ARGV, 4, -1 do
  if string.find(ARGV[i], '^%d+:[^\n]*\3') then
    named = '1'
    break
  end
end

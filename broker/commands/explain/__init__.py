"""Why a claim, class, reservation or cluster is as it is."""

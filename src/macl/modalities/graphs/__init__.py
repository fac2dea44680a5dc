"""Graphs: TU sets and the graph atlas, GraphCL's views and encoder, the SVM protocol."""
